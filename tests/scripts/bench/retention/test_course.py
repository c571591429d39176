"""A course goes on after a kill with all that its line had; a course of other settings is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bench import version_line
from scripts.bench.persona import Chat, Persona
from scripts.bench.retention.course import Course, Plan
from scripts.bench.retention.shares import Examiner
from scripts.harness.lora import random_adapter

PLAN = Plan(seed=1, rounds=1, ratings=8, threads=1, preset="balanced", overrides={})
ABOUT = {"date": "2026-11-29"}


@pytest.fixture(scope="module")
def chat(tiny_weights):
    return Chat(tiny_weights, threads=1)


@pytest.fixture
def trained(monkeypatch, tiny_weights):
    """Runs of no time: each passes with a version of random weights, and leaves what it was given in its folder."""

    def train(folder, spec, lines):
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(spec))
        (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
        random_adapter(tiny_weights, Path(spec["out"]), seed=spec["run"])
        return {"status": "passed", "baseline_after": 0.25, "gate": {}, "choices": {}}

    monkeypatch.setattr(version_line, "train", train)


def test_it_goes_on_after_a_kill(chat, trained, tmp_path):
    tastes = [Persona("coin"), Persona("one_paragraph")]
    examiner = Examiner(chat, tastes, 1)
    first = next(Course(chat, examiner, tastes, PLAN, tmp_path, ABOUT).go_on())
    leftover = tmp_path / "runs/r00002"
    leftover.mkdir()
    (leftover / "result.json").write_text("{")

    resumed = Course(chat, examiner, tastes, PLAN, tmp_path, {"date": "later"})
    assert resumed.remaining == 1
    (second,) = resumed.go_on()
    assert resumed.remaining == 0
    assert resumed.record["date"] == ABOUT["date"]
    assert resumed.record["rounds"] == [first, second]
    assert [first["taste"], second["taste"]] == ["coin", "one_paragraph"]
    assert set(first["marks"]["liked"]) == {"coin", "one_paragraph", "sums"}

    spec = json.loads((leftover / "run.json").read_bytes())
    assert spec["parent"] == first["version"] == 1 and spec["baseline"] == 0.25
    assert spec["adapters"] == {"1": str(tmp_path / "adapters/v0001")}
    samples = [json.loads(line) for line in (leftover / "samples.jsonl").read_text().splitlines()]
    assert [sample["version"] for sample in samples] == [1] * PLAN.ratings + [0], "its own, and what is held back"
    assert not (leftover / "result.json").exists()
    with pytest.raises(SystemExit, match="other settings"):
        Course(chat, examiner, tastes, replace(PLAN, seed=2), tmp_path, ABOUT)


def test_two_versions_get_the_same_draws(chat):
    examiner = Examiner(chat, [Persona("coin")], 1)
    base, again = examiner.examine(None), examiner.examine(None)
    assert base["replies"] == again["replies"]
    assert base["liked"] == again["liked"]


def test_a_taste_alone_has_the_questions_of_the_sequence(chat, tmp_path):
    tastes = [Persona("coin"), Persona("one_paragraph")]
    examiner = Examiner(chat, tastes, 2)
    sequence = Course(chat, examiner, tastes, PLAN, tmp_path / "sequence", ABOUT)
    alone = Course(chat, examiner, tastes[1:], PLAN, tmp_path / "alone", ABOUT, skipped=1)
    assert (sequence.remaining, alone.remaining) == (2, 1)
    assert alone.questions(0) == sequence.questions(1)
    assert alone.questions(0) != sequence.questions(0)
