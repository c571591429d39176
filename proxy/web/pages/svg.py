"""Small plots as SVG, without a script: lines, dots, bars and marks in a frame with two axes.

Owns geometry and ticks. Colours are classes: the page's stylesheet knows light and dark. The elements are made by a
library that escapes what is put into them. Not here: which numbers are drawn (plots, scripts/docs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final
from xml.etree import ElementTree

from markupsafe import Markup

from proxy.web.pages.filters import moment

WIDTH, HEIGHT = 360, 170
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 40, 10, 18, 24  # room for the words around the frame
TICKS: Final = 4

Point = tuple[float, float]


class Plot:
    """A frame from `x` to `y`, each the lowest and the highest value; `label` says it all to who does not see."""

    def __init__(self, label: str, x: Point, y: Point, *, height: int = HEIGHT) -> None:
        self._x, self._y = _wide(x), _wide(y)
        self._height = height
        attributes = {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": label}
        self.element = ElementTree.Element("svg", attributes)

    def across(self, value: float) -> float:
        low, high = self._x
        return MARGIN_LEFT + (value - low) / (high - low) * (WIDTH - MARGIN_LEFT - MARGIN_RIGHT)

    def up(self, value: float) -> float:
        low, high = self._y
        return self._height - MARGIN_BOTTOM - (value - low) / (high - low) * (self._height - MARGIN_TOP - MARGIN_BOTTOM)

    def axes(self, xs: Iterable[tuple[float, str]], ys: Iterable[tuple[float, str]]) -> None:
        for value, text in ys:
            self._add("line", "grid", x1=MARGIN_LEFT, x2=WIDTH - MARGIN_RIGHT, y1=self.up(value), y2=self.up(value))
            self._text(text, "tick", MARGIN_LEFT - 5, self.up(value) + 3.5, "end")
        for value, text in xs:
            self._text(text, "tick", self.across(value), self._height - MARGIN_BOTTOM + 15, "middle")

    def line(self, points: Sequence[Point], kind: str = "line") -> None:
        point_text = " ".join(f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in points)
        self._add("polyline", kind, points=point_text)

    def dots(self, points: Sequence[Point], radius: float = 2.5, kind: str = "dot", titles: Sequence[str] = ()) -> None:
        """`titles` of each is shown under the pointer."""
        for (x, y), words in zip_longest(points, titles):
            dot = self._add("circle", kind, cx=self.across(x), cy=self.up(y), r=radius)
            if words:
                ElementTree.SubElement(dot, "title").text = words

    def bar(self, x: float, width: float, low: float, high: float, kind: str) -> None:
        start, end = self.across(x), self.across(x + width)
        top, bottom = self.up(high), self.up(low)
        thick = max(1.0, (end - start) * 0.8)
        self._add("rect", kind, x=(start + end - thick) / 2, y=top, width=thick, height=max(0.0, bottom - top))

    def marks(self, marks: Iterable[tuple[float, str]]) -> None:
        """Dashed lines with a word at their top; words that would cover each other are left out."""
        free = -math.inf
        for x, text in sorted(marks):
            position = self.across(x)
            self._add("line", "mark-line", x1=position, x2=position, y1=MARGIN_TOP - 4, y2=self._height - MARGIN_BOTTOM)
            if position - 4 * len(text) >= free:
                self._text(text, "mark-text", position, MARGIN_TOP - 8, "middle")
                free = position + 4 * len(text)

    def words(self, text: str, x: float, y: float, kind: str = "tick", anchor: str = "start") -> None:
        """At a place of the frame's own."""
        self._text(text, kind, self.across(x), self.up(y), anchor)

    def drawn(self) -> Markup:
        return Markup(ElementTree.tostring(self.element, encoding="unicode"))  # noqa: S704  it has escaped everything

    def _add(self, tag: str, kind: str, **places: float | str) -> ElementTree.Element:
        attributes = {name: place if isinstance(place, str) else f"{place:.1f}" for name, place in places.items()}
        return ElementTree.SubElement(self.element, tag, {"class": kind, **attributes})

    def _text(self, text: str, kind: str, x: float, y: float, anchor: str) -> None:
        self._add("text", kind, x=x, y=y, **{"text-anchor": anchor}).text = text


def _wide(values: Point) -> Point:
    """A frame has a width, also where all values are the same."""
    low, high = values
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Round numbers from `low` to `high`: steps of 1, 2 or 5 and zeros."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def plain(value: float) -> str:
    """A tick in as few characters as it needs."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0e}"


def time_ticks(values: Sequence[float], each: float) -> list[tuple[float, str]]:
    """Some of these moments, in local time: hours within a day, else days."""
    if not values:
        return []
    spread = range(0, len(values), max(1, math.ceil(len(values) / TICKS)))
    form = "%-d %b %H:%M" if each < 86400 else "%-d %b"
    return [(values[n] + each / 2, moment(form, values[n])) for n in spread]
