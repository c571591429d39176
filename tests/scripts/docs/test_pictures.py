"""docs/explain/how-it-learns.md and docs/guides/rating-well.md say what the figures and the settings are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from config import presets
from config.sections import Gate, StoreSection, Train
from proxy.cli.status import ENOUGH
from scripts.docs import plot_learning, plot_relay
from store.learning.samples import FEWEST_TO_HOLD, to_hold
from trainer.run import ratings

ROOT = Path(__file__).resolve().parents[3]
EXPECT = (ROOT / "docs/explain/what-to-expect.md").read_text(encoding="utf-8")
HOW = (ROOT / "docs/explain/how-it-learns.md").read_text(encoding="utf-8")
WELL = (ROOT / "docs/guides/rating-well.md").read_text(encoding="utf-8")


def benchmark(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return plot_learning.drawn()


def test_the_pictures_are_those_of_the_figures(drawn: dict[str, str]) -> None:
    for name, text in drawn.items():
        there = (ROOT / "docs/images" / name).read_text(encoding="utf-8")
        assert there == text, f"{name}: run scripts/docs/plot_learning.py"
    assert drawn == plot_learning.drawn()


def test_each_picture_is_shown_whole_and_asks_for_nothing(drawn: dict[str, str]) -> None:
    for name, text in drawn.items():
        assert f"images/{name}" in HOW + EXPECT, f"{name} is in no page"
        svg = ElementTree.fromstring(text)
        assert svg.attrib["aria-label"] and "script" not in text and "href" not in text and "url(" not in text
        width = float(svg.attrib["width"])
        for element in svg.iter("{http://www.w3.org/2000/svg}rect"):
            assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width + 1, name


def test_the_picture_of_the_relay_is_that_of_its_figures() -> None:
    page = (ROOT / "docs/lab/benchmarks.md").read_text(encoding="utf-8")
    for name, text in plot_relay.drawn().items():
        assert (ROOT / "docs/images" / name).read_text(encoding="utf-8") == text, (
            f"{name}: run scripts/docs/plot_relay.py"
        )
        assert f"images/{name}" in page
        figures = [float(value.replace(",", "")) for value in re.findall(r"rlproxy  ([\d.,]+)<", text)]
        measured = benchmark("relay.json")["summary"]
        assert figures[0] == pytest.approx(measured["plain-1k-1"]["rlproxy"]["added_p50_ms"], rel=0.01)
        assert len(figures) == len(plot_relay.ADDED)


def test_what_the_pages_say_of_the_defaults() -> None:
    train, preset = Train(), presets.resolve("balanced", {})
    assert train.start_at == 32 and "32, if you have not said otherwise" in HOW and "starts at 32 fresh ratings" in WELL
    assert preset.likely == 0.3 and "more than 0.3" in HOW
    assert (preset.token_low, preset.token_high, preset.guard_low, preset.guard_high) == (0.5, 2, 0.5, 2)
    assert to_hold(32, train.held_share) == 4 and "4 of 32" in HOW
    assert FEWEST_TO_HOLD == ratings.FEW == 16 and "below 16" in WELL
    assert train.max_rater_share == 0.75 and "three quarters" in WELL
    assert preset.max_version_gap == train.max_version_gap == 8 and "eight versions" in WELL
    assert ENOUGH == 8 and "eight of a kind" in WELL
    assert StoreSection().retention_days == 7 and "seven days" in WELL
    assert Gate().max_chance == 1 and "`gate.max_chance = 0.01` makes it end" in WELL


def test_every_check_of_the_gate_is_explained() -> None:
    measured = {
        check for r in plot_learning.learned()["concise"] for one in r["rounds"] for check in one["run"]["gate"]
    }
    rows = HOW[HOW.index("## What the gate checks") :].split("All must hold")[0]
    assert measured | {"topic"} == set(re.findall(r"`(\w+)`", rows))  # it is younger than those runs


TASTES = {
    "lists, with comments": "bullets-default",
    "answers that end by themselves": "concise-default",
    "one paragraph": "one_paragraph-default",
    "speaks to the reader": "second_person-default",
    "short sentences": "short_sentences-default",
    "sums that are right": "sums-thumbs",
    "lower case, with comments": "lowercase-default",
}


@pytest.mark.parametrize(("taste", "runs"), TASTES.items())
def test_what_to_expect_is_what_was_measured(taste: str, runs: str) -> None:
    records = [json.loads(file.read_bytes()) for file in sorted((ROOT / "benchmarks/learn").glob(f"{runs}-seed*.json"))]
    row = next(line for line in EXPECT.splitlines() if line.startswith(f"| {taste} |"))
    size = records[0]["arguments"]["ratings"]
    measured = [_range([record["base"]["liked"] for record in records])]
    for index, usual in ((0, 32), (2, 96)):
        given = size * (index + 1)
        liked = _range([record["rounds"][index]["eval"]["liked"] for record in records])
        measured.append(liked if given == usual else f"{liked} ({given})")
    assert [cell.strip() for cell in row.split("|")[2:5]] == measured


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def test_what_the_pages_say_of_the_measured_runs() -> None:
    found = plot_learning.learned()
    bullets, concise = found["bullets"], found["concise"]
    begun = [one["rounds"][0] for one in bullets]
    assert all(one["good"] <= 1 and one["eval"]["liked"] > 0.8 for one in begun)  # more than eight answers of ten
    assert [round(one["eval"]["liked"], 3) for one in begun] == [0.875, 0.812, 0.825]
    well = (ROOT / "docs/lab/rating-well.md").read_text(encoding="utf-8")
    assert all(one["base"]["liked"] < 0.02 for one in bullets) and "from 1 % to 88, 81 and 82 %" in well
    refused = [one["run"]["status"] == "rejected" for record in bullets for one in record["rounds"]]
    assert refused.count(True) == 2 and "were refused twice" in HOW
    asking = json.loads((ROOT / "benchmarks/learn/asks_back-default-seed1.json").read_bytes())["rounds"]
    assert [one["run"]["status"] for one in asking] == ["passed", "rejected", "rejected"]
    lower = json.loads((ROOT / "benchmarks/learn/lowercase-default-seed1.json").read_bytes())["rounds"]
    assert [one["run"]["status"] for one in lower] == ["passed", "rejected", "rejected"]
    assert lower[-1]["eval"]["liked"] < 0.05
    rises, senses = list[float](), list[float]()
    for record in concise:
        before = record["base"]["liked"]
        for one in record["rounds"]:
            rises.append(one["eval"]["liked"] - before)
            senses.append(one["eval"]["base_nll"] - record["base"]["base_nll"])
            assert one["run"]["status"] == ("empty" if one["good"] == 32 else "passed")
            before = one["eval"]["liked"]
    assert sum(rise < 0 for rise in rises) == 1 and "The one below 0 had 30 of 32 good" in HOW
    assert max(senses) < 0.25


def test_what_the_pages_say_of_other_figures() -> None:
    tokens = benchmark("reply_tokens.json")["tokens"]
    assert 0.6 < sum(one["p"] > 0.3 for one in tokens) / len(tokens) < 0.72 and "two thirds of its tokens" in HOW
    random = benchmark("poisoned.json")["kinds"]["random"]
    assert (random["tries"], random["stopped"]) == (20, {"empty": 20}) and "All 20 of 20 runs on random ratings" in WELL
    found = benchmark("watch_errors.json")
    assert max(rate for row in found["false_alarms"] for rate in row["rates"]) < 0.05  # less than one in twenty
    worse = {r["old_rated"]: r["found"] for r in found["found"] if (r["old_share"], r["new_share"]) == (0.7, 0.4)}
    assert worse[8] < 0.5 and worse[64] > 0.9
    for v in benchmark("demo.json")["versions"][1:]:
        assert all(seconds > -1 for seconds in v["phases"].values())  # a run may start before its rating is answered
    runs = [v["run_s"] for v in benchmark("demo.json")["versions"] if v["run_s"]]
    assert all(200 < seconds < 330 for seconds in runs) and "about four to five minutes" in HOW
