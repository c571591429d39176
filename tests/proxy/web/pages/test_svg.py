"""Plots: few round ticks, points inside the frame, escaped words."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.web.pages.svg import Plot, plain, ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 8))
def test_ticks_are_few_round_and_inside(low: float, width: float, most: int) -> None:
    found = ticks(low, low + width, most)
    assert len(found) <= most + 1
    assert all(low - width * 1e-3 <= tick <= low + width * 1.001 for tick in found)
    assert found == sorted(found)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=20), st.text(max_size=20))
def test_a_plot_stays_in_its_frame_and_escapes(points: list[tuple[float, float]], label: str) -> None:
    label = "".join(c for c in label if c.isprintable())
    xs, ys = [x for x, _ in points], [y for _, y in points]
    plot = Plot(label, (min(xs), max(xs)), (min(ys), max(ys)))
    plot.line(points)
    plot.dots(points)
    plot.marks([(xs[0], label)])
    assert all(0 <= plot.across(x) <= 360 for x in xs) and all(0 <= plot.up(y) <= 170 for y in ys)
    tags = {element.tag for element in ElementTree.fromstring(str(plot.drawn())).iter()}
    assert tags <= {"svg", "polyline", "circle", "line", "text"}


@pytest.mark.parametrize(("value", "said"), [(0.25, "0.25"), (0.1 + 0.2, "0.3"), (120.0, "120"), (26000.0, "3e+04")])
def test_a_tick_in_few_characters(value: float, said: str) -> None:
    assert plain(value) == said
