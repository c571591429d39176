"""A course goes on after a kill with all that its line had; a course of other settings is refused."""

import json
from dataclasses import replace

import pytest

from scripts.bench.persona import Chat, Persona
from scripts.bench.retention.course import Course, Plan
from scripts.bench.retention.shares import Examiner

PLAN = Plan(seed=1, rounds=1, ratings=8, threads=1, preset="balanced", overrides={"drift_weak": 1.0})
ABOUT = {"date": "2026-11-29"}


@pytest.fixture(scope="module")
def chat(tiny_weights):
    return Chat(tiny_weights, threads=1)


def test_it_goes_on_after_a_kill(chat, tmp_path):
    tastes = [Persona("coin"), Persona("one_paragraph")]
    examiner = Examiner(chat, tastes, 2)
    course = Course(chat, examiner, tastes, PLAN, tmp_path, ABOUT)
    first = next(course.go_on())
    leftover = tmp_path / "runs/r00002"
    leftover.mkdir(parents=True)
    (leftover / "result.json").write_text("{")

    resumed = Course(chat, examiner, tastes, PLAN, tmp_path, {"date": "later"})
    assert resumed.remaining == 1
    (second,) = resumed.go_on()
    assert resumed.remaining == 0
    assert resumed.record["date"] == ABOUT["date"]
    assert resumed.record["rounds"] == [json.loads(json.dumps(first)), second]
    assert [first["taste"], second["taste"]] == ["coin", "one_paragraph"]
    assert set(first["marks"]["liked"]) == {"coin", "one_paragraph", "sums"}

    assert json.loads((leftover / "run.json").read_bytes())["parent"] == first["version"]
    samples = [json.loads(line) for line in (leftover / "samples.jsonl").read_text().splitlines()]
    of_first = [sample["rating"] for sample in samples if sample["rating"].startswith("rt-1-")]
    assert of_first, "what the first run held back, or gave back"
    assert len([sample for sample in samples if sample["rating"].startswith("rt-2-")]) == PLAN.ratings

    with pytest.raises(SystemExit, match="other settings"):
        Course(chat, examiner, tastes, replace(PLAN, seed=2), tmp_path, ABOUT)


def test_two_versions_get_the_same_draws(chat):
    examiner = Examiner(chat, [Persona("coin")], 2)
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
