"""The plots of ratings, versions and runs, for the page and its file.

Owns which numbers are drawn, and the words for who does not see a plot. Not here: geometry and ticks (svg), colours
(the stylesheet).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from proxy.web.pages.svg import Plot, plain, ticks, time_ticks

RECENT: Final = 7  # hours, days or weeks that the line of the shares runs over
LABELS: Final = 8  # under a curve
CURVES: Final = {
    "loss": "Loss", "acceptance": "Tokens accepted", "kl_old": "KL from where the run began",
    "kl_ref": "KL to the base",
}  # fmt: skip


class RatedSpan(NamedTuple):
    """Ratings of one hour, day or week from `start` on."""

    start: float
    good: int
    bad: int


class PlottedVersion(NamedTuple):
    version: int
    created_at: float


def share(span_s: float, spans: Sequence[RatedSpan], versions: Sequence[PlottedVersion]) -> Markup | None:
    """The share of good ones in each span, over some of them, and when versions were made."""
    rated_spans = [span for span in spans if span.good + span.bad]
    if len(rated_spans) < 2:  # one point is not a curve
        return None
    dots = [(span.start + span_s / 2, span.good / (span.good + span.bad)) for span in rated_spans]
    line = []
    for current in rated_spans:
        recent_spans = [span for span in rated_spans if current.start - RECENT * span_s < span.start <= current.start]
        good, bad = sum(span.good for span in recent_spans), sum(span.bad for span in recent_spans)
        line.append((current.start + span_s / 2, good / (good + bad)))
    first, last = dots[0][1], line[-1][1]
    label = f"Share of good ratings over time: {first:.0%} at first, {last:.0%} of late"
    plot = _over_time(label, span_s, spans, versions, (0, 1), [(n / 4, f"{n / 4:.0%}") for n in range(5)])
    plot.dots(dots, titles=[f"{span.good} good, {span.bad} bad" for span in rated_spans])
    plot.line(line)
    return plot.drawn()


def counts(each: float, spans: Sequence[RatedSpan], versions: Sequence[PlottedVersion]) -> Markup | None:
    """Good ones up, bad ones down."""
    if not spans:
        return None
    most = max(max(span.good, span.bad) for span in spans) or 1
    levels = [(tick, f"{abs(tick):.0f}") for tick in ticks(-most, most) if tick == int(tick)]
    plot = _over_time("Good ratings up, bad ones down, over time", each, spans, versions, (-most, most), levels, 130)
    for span in spans:
        plot.bar(span.start, each, 0, span.good, "bar-good")
        plot.bar(span.start, each, -span.bad, 0, "bar-bad")
    return plot.drawn()


def _over_time(
    label: str, each: float, spans: Sequence[RatedSpan], versions: Iterable[PlottedVersion], y: tuple[float, float],
    levels: Iterable[tuple[float, str]], height: int = 170,
) -> Plot:  # fmt: skip
    low, high = spans[0].start, spans[-1].start + each
    plot = Plot(label, (low, high), y, height=height)
    plot.axes(time_ticks([span.start for span in spans], each), levels)
    plot.marks((plotted.created_at, f"v{plotted.version}") for plotted in versions if low <= plotted.created_at <= high)
    return plot


def curves(run: int, steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Markup]]:
    """The title and the plot of each figure that the steps of a run tell."""
    for name, title in CURVES.items():
        points = [(float(step["step"]), float(step[name])) for step in steps if _is_number(step.get(name))]
        if len(points) < 2:
            continue
        ys = [y for _, y in points]
        low, high = (0.0, 1.0) if name == "acceptance" else (min(0.0, *ys), max(0.0, *ys))
        label = f"{title}, run {run}: from {plain(ys[0])} to {plain(ys[-1])} in {len(points)} steps"
        plot = Plot(label, (points[0][0], points[-1][0]), (low, high), height=130)
        levels = [(tick, plain(tick)) for tick in ticks(low, high, 3)]
        plot.axes([(x, f"{x:.0f}") for x, _ in points[:: -(-len(points) // LABELS)]], levels)
        plot.line(points)
        plot.dots(points, titles=[f"{x:.0f}: {plain(value)}" for x, value in points])
        yield title, plot.drawn()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
