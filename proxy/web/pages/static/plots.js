// The plots of the progress page, drawn by uPlot from /page/numbers in the colours of the stylesheet.
"use strict";
(() => {
  const room = document.getElementById("plots");
  const DAY = 86400;
  let drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const font = "12px system-ui, sans-serif";

  const date = (at) => new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
  const percent = (value) => value == null ? "–" : Math.round(value * 100) + " %";
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

  function axes(unit, { dates = true, whole = false } = {}) {
    const look = { stroke: colour("--soft"), font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const across = { ...look, grid: { show: false } };
    if (dates) across.values = (_, marks) => marks.map(date);
    else across.incrs = WHOLE;
    return [across, { ...look, size: 48, values: (_, marks) => marks.map(unit), ...(whole ? { incrs: WHOLE, space: 20 } : {}) }];
  }

  // Dashed lines where versions were made.
  function marks(versions) {
    return (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("--soft");
      ctx.textAlign = "left";
      ctx.setLineDash([4, 4]);
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      for (const [at, name] of versions) {
        const x = plot.valToPos(at, "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.fillText(name, x + 4 * devicePixelRatio, bbox.top + 12 * devicePixelRatio);
      }
      ctx.restore();
    };
  }

  function draw(name, options, data) {
    const at = room.querySelector(`[data-plot="${name}"]`);
    at.replaceChildren();
    if (data[0].length < 2) {
      const none = document.createElement("p");
      none.className = "none";
      none.textContent = data[0].length ? at.dataset.one : "Nothing to show yet.";
      at.append(none);
      return;
    }
    drawn.push(new uPlot({ width: at.clientWidth, height: 200, cursor: { y: false }, ...options }, data, at));
  }

  // The share of good ones in the seven days that end with this one.
  function week(judged, [end]) {
    const within = judged.filter(([at]) => at > end - 6.5 * DAY && at <= end);
    const good = within.reduce((sum, day) => sum + day[1], 0), bad = within.reduce((sum, day) => sum + day[2], 0);
    return good / (good + bad);
  }

  function days(numbers) {
    const first = numbers.days[0]?.[0], last = numbers.days.at(-1)?.[0];
    return { x: { time: true, range: [first - DAY / 2, Math.max(last, first + 6 * DAY) + DAY / 2] } };
  }

  function show(numbers) {
    for (const plot of drawn) plot.destroy();
    drawn = [];
    const column = (rows, at) => rows.map((row) => row[at]);
    const step = { stroke: colour("--accent"), width: 2, points: { size: 6, fill: colour("--accent") } };
    draw("steps", {
      scales: { x: { time: false } },
      axes: axes((value) => value.toPrecision(2), { dates: false }),
      series: [{ label: "Step" }, { label: "Loss", ...step, value: (_, v) => v?.toPrecision(3) ?? "–" }],
    }, [column(numbers.steps, 0), column(numbers.steps, 1)]);

    const judged = numbers.days.filter(([, good, bad]) => good + bad);
    draw("share", {
      scales: { ...days({ days: judged }), y: { range: [0, 1] } },
      axes: axes(percent),
      series: [
        { label: "Day", value: (_, at) => at == null ? "–" : date(at) },
        { label: "That day", paths: () => null, points: { show: true, size: 5, stroke: colour("--soft"), fill: colour("--soft") },
          stroke: colour("--soft"), value: (_, v) => percent(v) },
        { label: "Seven days", ...step, points: { show: false }, value: (_, v) => percent(v) },
      ],
      hooks: { draw: [marks(numbers.versions)] },
    }, [column(judged, 0), judged.map(([, good, bad]) => good / (good + bad)), judged.map((day) => week(judged, day))]);

    const bars = uPlot.paths.bars({ size: [0.6, 28] });
    const bar = (label, name) => ({
      label, paths: bars, points: { show: false }, fill: colour(name), stroke: colour(name), width: 0,
      value: (_, v) => Math.abs(v ?? 0),
    });
    draw("ratings", {
      scales: days(numbers),
      axes: axes((value) => Math.abs(value), { whole: true }),
      series: [{ label: "Day", value: (_, at) => at == null ? "–" : date(at) }, bar("Good", "--good"), bar("Bad", "--bad")],
    }, [column(numbers.days, 0), column(numbers.days, 1), numbers.days.map((day) => -day[2])]);
    room.dataset.drawn = "yes";
  }

  let last = null;
  async function load() {
    const answer = await fetch(room.dataset.numbers);
    if (answer.ok) show(last = await answer.json());
  }
  let waiting;
  const again = (wait) => () => { waiting ??= setTimeout(() => { waiting = undefined; load(); }, wait); };
  for (const kind of ["run", "swap"]) document.addEventListener("rl:" + kind, again(500));
  for (const kind of ["rating", "retracted"]) document.addEventListener("rl:" + kind, again(3000));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && show(last));
  new ResizeObserver(() => {
    for (const plot of drawn) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 200 });
  }).observe(room);
  load();
})();
