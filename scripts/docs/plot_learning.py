"""Draw the pictures of docs/explain/how-it-learns.md and docs/lab/benchmarks.md from the JSON in benchmarks/.

The same figures draw the same bytes (canvas). `--check` only compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from config import presets
from proxy.web.pages.svg import HEIGHT, MARGIN_LEFT, MARGIN_TOP, WIDTH, Plot, plain
from scripts.docs.canvas import Canvas, write
from scripts.docs.filling import settle

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
POISONS = (
    ("constant", "all ratings the same"),
    ("random", "ratings drawn at random"),
    ("garbage", "random tokens, liked"),
    ("template", "another chat template"),
)
DRAWN = ("bullets", "concise")  # personas: one whose comments teach, one whose ratings do
Record = dict[str, Any]


def main() -> int:
    return settle({IMAGES / name: text for name, text in drawn().items()})


def drawn() -> dict[str, str]:
    """Every picture by its file's name."""
    pictures: dict[str, Callable[[], str]] = {
        "learning-path.svg": path_of_a_rating,
        "learning-liked.svg": liked,
        "learning-sense.svg": sense,
        "learning-tokens.svg": tokens,
        "learning-good.svg": good_ones,
        "learning-gate.svg": gate,
        "learning-watch.svg": watch,
    }
    return {name: draw() for name, draw in pictures.items()}


def read(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


def learned() -> dict[str, list[Record]]:
    """The measured runs of the personas that are drawn, by seed."""
    folder = ROOT / "benchmarks/learn"
    files = {persona: sorted(folder.glob(f"{persona}-default-seed*.json")) for persona in DRAWN}
    return {persona: [json.loads(file.read_bytes()) for file in these] for persona, these in files.items()}


# What the pictures have in common


def names(plot: Plot, ends: Sequence[tuple[float, float, str]]) -> None:
    """A word behind the end of each line; those that would cover each other give way downwards."""
    free = 0.0
    for x, y, text in sorted(ends, key=lambda end: plot.up(end[1])):
        text_y = max(plot.up(y) + 4, free)
        write(plot, text, plot.across(x) + 8, text_y)
        free = text_y + 12


def curve(plot: Plot, record: Record, value: Callable[[Record, Record], float]) -> tuple[float, float, str]:
    """Draw the result of a persona's held-out prompts after each run; hollow where nothing went live."""
    round_size, base = record["arguments"]["ratings"], record["base"]
    points = [(0.0, value(base, base))]
    points += [(round_size * (n + 1), value(base, row["eval"])) for n, row in enumerate(record["rounds"])]
    plot.line(points, "thin")
    passed = [True, *(row["run"]["status"] == "passed" for row in record["rounds"])]
    plot.dots([p for p, ok in zip(points, passed, strict=True) if ok], 3)
    plot.dots([p for p, ok in zip(points, passed, strict=True) if not ok], 3.5, "no")
    return *points[-1], f"seed {record['seed']}"


def panels(label: str, value: Callable[[Record, Record], float], y: tuple[float, float], marks: list[float]) -> Canvas:
    by_persona = learned()
    canvas = Canvas(label, WIDTH * len(by_persona), HEIGHT + 40)
    for n, (persona, records) in enumerate(by_persona.items()):
        most = max(len(r["rounds"]) * r["arguments"]["ratings"] for r in records)
        step = records[0]["arguments"]["ratings"]
        plot = Plot(persona, (0, most * 1.2), y)  # room for a word behind the last point
        plot.axes([(x, f"{x}") for x in range(0, most + 1, step)], [(t, _level(t, y)) for t in marks])
        names(plot, [curve(plot, record, value) for record in records])
        canvas.panel(plot, f"{persona}, {len(records)} seeds", n * WIDTH)
    canvas.add(
        "text", "word", "ratings; hollow: no new version, by the gate's no or for want of dislikes", x=40, y=HEIGHT + 32
    )
    return canvas


def _level(value: float, y: tuple[float, float]) -> str:
    return f"{value:.0%}" if y[1] == 1 else f"{value:+.2g}" if value else "0"


# The pictures


def path_of_a_rating() -> str:
    canvas = Canvas("From a rating to a new version, and back", 720, 290)
    canvas.box(20, 30, ["You rate", "good, bad, a comment"])
    canvas.box(210, 30, ["Ratings wait", "until 32 are fresh"])
    canvas.box(400, 30, ["A run", "trains a small add-on"])
    canvas.box(400, 130, ["The gate", "no worse? still sane?"])
    canvas.box(210, 130, ["A new version", "answers from now on"])
    canvas.box(20, 130, ["The watch", "worse than before?"])
    canvas.box(210, 225, ["The version before", "answers again"])
    canvas.arrow([(170, 54), (208, 54)])
    canvas.arrow([(360, 54), (398, 54)])
    canvas.arrow([(475, 78), (475, 128)])
    canvas.arrow([(400, 154), (362, 154)], "yes", (370, 148))
    canvas.arrow([(210, 154), (172, 154)])
    canvas.arrow([(95, 178), (95, 249), (208, 249)], "yes: roll back", (104, 243))
    canvas.arrow([(95, 130), (95, 80)], "no: rate on", (102, 108))
    canvas.arrow([(550, 154), (600, 154), (600, 14), (285, 14), (285, 28)], "no: nothing", (608, 84))
    canvas.add("text", "word", "changes, ratings", x=608, y=99)
    canvas.add("text", "word", "are fresh again", x=608, y=114)
    return canvas.text()


def liked() -> str:
    label = "Share of liked answers to prompts that were not rated, by ratings given, for each persona and seed"
    return panels(label, lambda base, evaluation: float(evaluation["liked"]), (0, 1), [0, 0.25, 0.5, 0.75, 1]).text()


def sense() -> str:
    label = "Base NLL: how much stranger than its own the base model finds the answers, by ratings given"
    marks = [-0.1, 0, 0.1, 0.2, 0.3, 0.4]

    def rise(base: Record, evaluation: Record) -> float:
        return float(evaluation["base_nll"] - base["base_nll"])

    return panels(label, rise, (-0.15, 0.45), marks).text()


def tokens() -> str:
    """The words of one reply that was really given, and what a bad rating would do with each."""
    report = read("reply_tokens.json")
    likely = presets.resolve("balanced", {}).likely
    canvas = Canvas(f"Each token of a disliked reply to: {report['prompt']}", 720, 218)
    canvas.add("text", "title", f"Asked: {report['prompt']}", x=16, y=22)
    x, y = 16.0, 36.0
    for token in report["tokens"]:
        width = 8 + 7.0 * len(token["text"].replace("\n", "↵").strip() or "␣")
        if x + width > 704:
            x, y = 16.0, y + 26
        kind = "still" if token["p"] > likely else "bad"
        canvas.add("rect", kind, x=round(x, 1), y=y, width=round(width, 1), height=20, rx=4)
        word = token["text"].replace("\n", "↵").strip() or "␣"
        canvas.add("text", "word", word, x=round(x + width / 2, 1), y=y + 14, text_anchor="middle")
        x += width + 3
    y += 40
    canvas.add("rect", "bad", x=16, y=y, width=14, height=14, rx=3)
    canvas.add("text", "word", "pushed down: the model had a choice here", x=36, y=y + 11)
    canvas.add("rect", "still", x=320, y=y, width=14, height=14, rx=3)
    words = f"left alone: it gave this more than {likely:g} anyway"
    canvas.add("text", "word", words, x=340, y=y + 11)
    return canvas.text()


def good_ones() -> str:
    """Draw runs without comments: how many of the ratings were good, and what the run then brought."""
    canvas = Canvas("More good ratings in a run, more learned from it", 2 * WIDTH, HEIGHT + 40)
    plot = Plot("Good ratings of 32, and the change of the liked share", (0, 32), (-0.1, 0.4))
    plot.axes(
        [(x, str(x)) for x in range(0, 33, 8)], [(t, f"{t:+.0%}" if t else "0") for t in (-0.1, 0, 0.1, 0.2, 0.3, 0.4)]
    )
    for record in learned()["concise"]:
        liked = record["base"]["liked"]
        for row in record["rounds"]:
            plot.dots([(row["good"], row["eval"]["liked"] - liked)], 4)
            liked = row["eval"]["liked"]
    canvas.panel(plot, "concise: liked share, what one run changed", 0)
    canvas.add("text", "word", "good ones among the run's 32 ratings; a dot is a run", x=40, y=HEIGHT + 32)
    kinds = read("poisoned.json")["kinds"]
    bars = Plot("Runs that should not train, and how many of them were stopped", (0, 1.08), (0, 1))
    bars.axes([(t, f"{t:.0%}") for t in (0, 0.5, 1)], [])
    for n, (kind, words) in enumerate(POISONS):
        tries, passed = kinds[kind]["tries"], kinds[kind]["passed"]
        y = MARGIN_TOP + 6 + 33 * n
        label = f"{words}: {tries - passed} of {tries}"
        write(bars, label, MARGIN_LEFT, y)
        wide = f"{bars.across((tries - passed) / tries) - MARGIN_LEFT:.1f}"
        box = {"class": "good", "x": str(MARGIN_LEFT), "y": str(y + 5), "width": wide, "height": "11"}
        ElementTree.SubElement(bars.element, "rect", box)
    canvas.panel(bars, "runs that should not train, stopped", WIDTH)
    return canvas.text()


def gate() -> str:
    """The gate's base NLL of every measured run beside its bound, in the order of the runs."""
    by_persona = learned()
    canvas = Canvas(
        "The gate's base NLL of every measured run, and the bound of each", WIDTH * len(by_persona), HEIGHT + 40
    )
    for n, (persona, records) in enumerate(by_persona.items()):
        rounds = [(record, number, row) for record in records for number, row in enumerate(record["rounds"])]
        runs = [run for run in rounds if "base_nll" in run[2]["run"]["gate"]]  # others had nothing to learn from
        plot = Plot(f"{persona}: measured and bound", (-0.5, len(runs) - 0.5), (-0.2, 1.0))
        plot.axes([], [(t, plain(t)) for t in (-0.2, 0, 0.2, 0.4, 0.6, 0.8, 1.0)])
        for x, (record, number, row) in enumerate(runs):
            check = row["run"]["gate"]["base_nll"]
            plot.line([(x - 0.35, check["bound"]), (x + 0.35, check["bound"])], "bound")
            plot.dots([(x, check["value"])], 4, "dot" if row["run"]["status"] == "passed" else "no")
            if number == 0:
                plot.words(f"seed {record['seed']}", x - 0.4, -0.31)
        canvas.panel(plot, f"{persona}: base_nll at the gate, and its bound", n * WIDTH)
    words = "a dot is a run, the red line above it is what it may have at most; hollow: refused, in its second try too"
    canvas.add("text", "word", words, x=40, y=HEIGHT + 32)
    return canvas.text()


def watch() -> str:
    """How often a worse version is rolled back by itself, by how much was rated before it."""
    report = read("watch_errors.json")
    canvas = Canvas("How often a worse version is found", WIDTH + 170, HEIGHT + 40)
    rated = sorted({row["old_rated"] for row in report["found"]})
    places = {count: n for n, count in enumerate(rated)}
    plot = Plot("Found, by ratings of the version before", (0, len(rated) - 1), (0, 1))
    plot.axes([(places[n], str(n)) for n in rated], [(t, f"{t:.0%}") for t in (0, 0.25, 0.5, 0.75, 1)])
    pairs = sorted({(row["old_share"], row["new_share"]) for row in report["found"]}, reverse=True)
    ends = list[tuple[float, float, str]]()
    for pair in pairs:
        rows = [row for row in report["found"] if (row["old_share"], row["new_share"]) == pair]
        points = [(float(places[row["old_rated"]]), row["found"]) for row in rows]
        plot.line(points, "line")
        plot.dots(points, 3)
        ends.append((*points[-1], f"from {pair[0]:.0%} to {pair[1]:.0%} liked"))
    alarms = [(float(places[row["old_rated"]]), max(row["rates"])) for row in report["false_alarms"]]
    plot.line(alarms, "dashed")
    names(plot, [*ends, (*alarms[-1], "just as good: a false alarm")])
    canvas.panel(plot, "a worse version is rolled back by itself", 0)
    canvas.add("text", "word", "ratings of the version before", x=40, y=HEIGHT + 32)
    return canvas.text()


if __name__ == "__main__":
    sys.exit(main())
