"""The report as one HTML file: everything in it, nothing asked for, no script.

Owns which plots there are, and the file. It is whole or not there, readable by its owner only, and never in the place
of one that is not a report of rlproxy. Text is escaped by the template, always. Not here: the data (gather), geometry
(svg).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from proxy.cli.report.svg import Plot, plain, ticks, when
from proxy.web.pages import filters as words

HERE: Final = Path(__file__).parent
GENERATOR: Final = "rlproxy report"  # by which a file is known to be ours
RECENT: Final = 7  # hours, days or weeks that the line of the shares runs over
CURVES: Final = (
    ("loss", "Loss"),
    ("acceptance", "Tokens accepted"),
    ("kl_old", "KL from where the run began"),
    ("kl_ref", "KL to the base"),
)
RUNS: Final = 20  # with curves; the newest

Json = Mapping[str, Any]


class NotWritten(Exception):
    """In one sentence."""


def html(report: Json) -> str:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    filters: dict[str, Callable[..., Any]] = {
        "version": words.version,
        "short": words.short,
        "seconds": words.seconds,
        "day": _day,
    }
    env.filters.update(filters)
    versions = [v for v in report["versions"] if v["version"]]
    return env.get_template(
        "report.html"
    ).render(
        r=report,
        generator=GENERATOR,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),  # noqa: S704  ours
        share_plot=_share_plot(report["times"], versions),
        count_plot=_count_plot(report["times"], versions),
        interval=_interval,
        nll_plot=_nll_plot(versions),
        curves=[(run, plots) for run in report["runs"] if (plots := _curves(run))][:RUNS],
        left_out=max(0, sum(len(run["steps"]) > 1 for run in report["runs"]) - RUNS),
    )


def check(path: Path, *, force: bool) -> None:
    """Raises NotWritten where there is something that a report should not take the place of."""
    try:
        with path.open("rb") as file:
            ours = f'content="{GENERATOR}"'.encode() in file.read(1000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotWritten(f"{path} cannot be written ({error}); name another file.") from error
    if not ours and not force:
        raise NotWritten(f"{path} is not a report of rlproxy; nothing was written. Name another file, or --force.")


def write(path: Path, text: str) -> None:
    """Raises NotWritten, and leaves what was there."""
    part = ""
    try:
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # conversations are private
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise NotWritten(f"{path} could not be written ({error}); what was there is as it was.") from error


def _day(at: float) -> str:
    return words.moment("%-d %b %Y %H:%M", at)


# Plots


def _share_plot(times: Json, versions: Sequence[Json]) -> Markup | None:
    """The share of good ones in each hour, day or week, over some of them, and when versions were made."""
    each, rows = times["each"], [row for row in times["rows"] if row["good"] + row["bad"]]
    if len(rows) < 2:  # one point is not a curve
        return None
    dots = [(row["at"] + each / 2, row["good"] / (row["good"] + row["bad"])) for row in rows]
    line = []
    for row in rows:
        near = [one for one in rows if row["at"] - RECENT * each < one["at"] <= row["at"]]
        good, bad = (sum(one[kind] for one in near) for kind in ("good", "bad"))
        line.append((row["at"] + each / 2, good / (good + bad)))
    first, last = dots[0][1], line[-1][1]
    plot = Plot(f"Share of good ratings over time: {first:.0%} at first, {last:.0%} of late", _span(times), (0, 1))
    plot.axes(when([row["at"] for row in rows], each), [(n / 4, f"{n / 4:.0%}") for n in range(5)])
    plot.marks(_made(times, versions))
    plot.dots(dots)
    plot.line(line)
    return plot.drawn()


def _count_plot(times: Json, versions: Sequence[Json]) -> Markup | None:
    each, rows = times["each"], times["rows"]
    if not rows:
        return None
    most = max(max(row["good"], row["bad"]) for row in rows) or 1
    plot = Plot("Good ratings up, bad ones down, over time", _span(times), (-most, most), height=130)
    levels = [t for t in ticks(-most, most) if t == int(t)]
    plot.axes(when([row["at"] for row in rows], each), [(t, f"{abs(t):.0f}") for t in levels])
    plot.marks(_made(times, versions))
    for row in rows:
        plot.bar(row["at"], each, 0, row["good"], "bar-good")
        plot.bar(row["at"], each, -row["bad"], 0, "bar-bad")
    return plot.drawn()


def _span(times: Json) -> tuple[float, float]:
    return times["rows"][0]["at"], times["rows"][-1]["at"] + times["each"]


def _made(times: Json, versions: Sequence[Json]) -> list[tuple[float, str]]:
    low, high = _span(times)
    return [(v["made_at"], f"v{v['version']}") for v in versions if low <= v["made_at"] <= high]


def _nll_plot(versions: Sequence[Json]) -> Markup | None:
    """Base NLL by version, as the gate measured it."""
    points = [(float(v["version"]), float(v["base_nll"])) for v in reversed(versions) if _real(v["base_nll"])]
    if len(points) < 2:
        return None
    low, high = min(0.0, *(y for _, y in points)), max(0.3, *(y for _, y in points))
    plot = Plot("Base NLL of each version, as the gate measured it", (points[0][0], points[-1][0]), (low, high))
    spread = points[:: max(1, len(points) // 8)]
    plot.axes([(x, f"v{x:.0f}") for x, _ in spread], [(t, plain(t)) for t in ticks(low, high)])
    plot.line(points)
    plot.dots(points)
    return plot.drawn()


def _interval(share: Json) -> Markup:
    """A share with what chance may make of it, on a line from 0 to 1."""
    said = f"{share['share']:.0%}, between {share['low']:.0%} and {share['high']:.0%}"
    plot = Plot(said, (0, 1), (0, 1), height=56)
    plot.axes([(0, "0%"), (0.5, "50%"), (1, "100%")], [])
    plot.line([(0, 0.5), (1, 0.5)], "grid")
    plot.line([(share["low"], 0.5), (share["high"], 0.5)], "reach")
    plot.dots([(share["share"], 0.5)], 5)
    return plot.drawn()


def _curves(run: Json) -> list[tuple[str, Markup]]:
    found = []
    for name, title in CURVES:
        points = [(float(step["step"]), float(step[name])) for step in run["steps"] if _real(step[name])]
        if len(points) < 2:
            continue
        ys = [y for _, y in points]
        low, high = (0.0, 1.0) if name == "acceptance" else (min(0.0, *ys), max(0.0, *ys))
        label = f"{title}, run {run['id']}: from {plain(ys[0])} to {plain(ys[-1])} in {len(points)} steps"
        plot = Plot(label, (points[0][0], points[-1][0]), (low, high), height=130)
        spread = points[:: max(1, -(-len(points) // 8))]
        plot.axes([(x, f"{x:.0f}") for x, _ in spread], [(t, plain(t)) for t in ticks(low, high, 3)])
        plot.line(points)
        plot.dots(points, 2)
        found.append((title, plot.drawn()))
    return found


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
