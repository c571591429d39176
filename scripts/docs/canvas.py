"""Pictures for the pages, as SVG: panels beside each other, or boxes and arrows.

The same figures draw the same bytes: no library with a version or fonts of its own is asked. Light and dark are a
stylesheet in each file. Not here: which figures are drawn (plot_learning, plot_relay), the geometry of a plot (report).
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from proxy.web.pages.svg import HEIGHT, WIDTH, Plot

STYLE = """
text { font: 10.5px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #625e56; }
.title { font-size: 12.5px; font-weight: 600; fill: #1e1d1a; }
.word { font-size: 11.5px; fill: #1e1d1a; }
.paper { fill: #faf9f6; }
.grid { stroke: #e3e0d8; fill: none; }
.line { stroke: #26554a; stroke-width: 2; fill: none; stroke-linejoin: round; }
.thin { stroke: #26554a; stroke-width: 1.2; fill: none; opacity: .7; }
.bound { stroke: #a3341f; stroke-width: 2; fill: none; }
.arrow { stroke: #625e56; stroke-width: 1.4; fill: none; }
.dashed { stroke: #a3341f; stroke-width: 1.2; stroke-dasharray: 4 3; fill: none; }
.dot { fill: #26554a; }
.no { fill: #faf9f6; stroke: #a3341f; stroke-width: 1.6; }
.card { fill: #ffffff; stroke: #cfcabf; }
.good { fill: #cfe6d8; }
.bad { fill: #f3c9bf; }
.still { fill: #ece9e2; }
@media (prefers-color-scheme: dark) {
  text { fill: #a8a297; }
  .title, .word { fill: #ebe8e1; }
  .paper { fill: #151412; }
  .grid { stroke: #33312c; }
  .line, .thin { stroke: #8fc9b7; }
  .bound, .dashed { stroke: #f0977f; }
  .arrow { stroke: #a8a297; }
  .dot { fill: #8fc9b7; }
  .no { fill: #151412; stroke: #f0977f; }
  .card { fill: #1d1c19; stroke: #4a473f; }
  .good { fill: #1f4630; }
  .bad { fill: #5c2a1d; }
  .still { fill: #2a2824; }
}
"""


class Canvas:
    """A file: panels beside each other, or boxes and arrows."""

    def __init__(self, label: str, width: int, height: int) -> None:
        attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "width": str(width)}
        self._svg = ElementTree.Element(
            "svg", {**attributes, "height": str(height), "role": "img", "aria-label": label}
        )
        ElementTree.SubElement(self._svg, "style").text = STYLE
        self.add("rect", "paper", x=0, y=0, width=width, height=height)

    def add(self, tag: str, kind: str, text: str = "", **places: float | str) -> None:
        attributes = {name.replace("_", "-"): str(place) for name, place in places.items()}
        element = ElementTree.SubElement(self._svg, tag, {"class": kind, **attributes})
        element.text = text or None

    def panel(self, plot: Plot, title: str, x: int, y: int = 0, height: int = HEIGHT) -> None:
        self.add("text", "title", title, x=x + 12, y=y + 16)
        plot.element.attrib |= {"x": str(x), "y": str(y + 20), "width": str(WIDTH), "height": str(height)}
        plot.element.attrib["overflow"] = "visible"
        self._svg.append(plot.element)

    def box(self, x: int, y: int, lines: Sequence[str], width: int = 150, kind: str = "card") -> None:
        self.add("rect", kind, x=x, y=y, width=width, height=18 + 15 * len(lines), rx=8)
        for n, line in enumerate(lines):
            style = "title" if n == 0 else "word"
            self.add("text", style, line, x=x + width / 2, y=y + 20 + 15 * n, text_anchor="middle")

    def arrow(self, points: Sequence[tuple[float, float]], word: str = "", place: tuple[float, float] = (0, 0)) -> None:
        """Along these points; the head is at the last, which is reached along one axis."""
        self.add("polyline", "arrow", points=" ".join(f"{x:g},{y:g}" for x, y in points))
        (x0, y0), (x, y) = points[-2:]
        back, side = (4 if x0 < x else -4 if x0 > x else 0, 4 if y0 < y else -4 if y0 > y else 0)
        wings = [(x - back * 1.6 - side, y - side * 1.6 - back), (x - back * 1.6 + side, y - side * 1.6 + back)]
        self.add("polyline", "arrow", points=" ".join(f"{a:g},{b:g}" for a, b in (wings[0], (x, y), wings[1])))
        if word:
            self.add("text", "word", word, x=place[0], y=place[1])

    def text(self) -> str:
        ElementTree.indent(self._svg)
        return ElementTree.tostring(self._svg, encoding="unicode") + "\n"


def write(plot: Plot, text: str, x: float, y: float) -> None:
    """At a place of the drawing's own."""
    ElementTree.SubElement(plot.element, "text", {"class": "word", "x": f"{x:.1f}", "y": f"{y:.1f}"}).text = text
