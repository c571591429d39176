"""The plan follows what samples bring: the rate. The rest is seen in whole runs (test_loop, test_teacher)."""

import io
import json
from types import SimpleNamespace

import pytest

from config import presets
from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import RunError, RunSpec
from trainer.run import plan as planning
from trainer.run.gate import Bounds
from trainer.run.plan import Plan, RatingCount

BALANCED = presets.resolve("balanced", {})
PLAN = Plan(BALANCED, Bounds())


def lessons(liked=0, disliked=0, *, taught=0, noted=0, credited=True, is_own=True):
    """`noted` are disliked and say why; `taught` are replies to imitate."""
    rated = [lesson(way, credited=credited, is_own=is_own) for way in [1.0] * liked + [-1.0] * disliked]
    return (
        rated
        + [lesson(-1.0, taught=True)] * noted
        + [lesson(0.0, taught=True, is_imitated=True, is_own=False)] * taught
    )


def lesson(way, *, taught=False, credited=False, is_imitated=False, is_own=True):
    sample = SimpleNamespace(reward=way)
    return SimpleNamespace(
        has_teacher=taught,
        credited=credited,
        is_imitated=is_imitated,
        is_own=is_own,
        sample=sample,
        direction=0 if taught else way,
    )


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (lessons(6, 22, credited=False), 1.0),
        (lessons(6, 22), 0.4),
        (lessons(14, 14), 0.4),
        (lessons(21, 7), 0.2),
        (lessons(27, 1), 0.4 * 2 / 28),
        (lessons(27, 1, credited=False), 2 / 28),
        (lessons(27, 1, credited=False, is_own=False), 1.0),  # another model's: what is liked is new to this one
        (lessons(taught=9), 0.5),
        (lessons(noted=9), 0.5),
        (lessons(5, 5, taught=10), 0.45),
        (lessons(25, noted=3, credited=False), (3 * 0.5 + 25 * 6 / 28) / 28),
        (lessons(14, noted=14), 0.45),
    ],
)
def test_the_rate_falls_where_more_is_said_a_token_and_where_little_is_disliked(tmp_path, given, share):
    with Progress(tmp_path) as progress:
        paced = planning.fit_rate(PLAN, given, progress)
    assert paced.preset.learning_rate == pytest.approx(BALANCED.learning_rate * share)
    few = sum(one.sample.reward < 0 for one in given) < sum(one.sample.reward > 0 for one in given) and given[0].is_own
    assert ("rated ones are disliked" in (tmp_path / "progress.jsonl").read_text()) is few


@pytest.mark.parametrize(
    ("now", "before", "no_better"),
    [
        (RatingCount(23, 28), RatingCount(1, 28), False),  # bullets after its first run
        (RatingCount(3, 28), RatingCount(2, 28), True),  # asks_back
        (RatingCount(24, 28), RatingCount(23, 28), True),
        (RatingCount(2, 28), RatingCount(9, 28), True),
        (RatingCount(0, 7), RatingCount(3, 28), False),  # too few to say
        (RatingCount(0, 28), RatingCount(0, 28), True),
    ],
)
def test_a_version_is_liked_more_or_it_is_not(now, before, no_better):
    assert planning.is_no_better(now, before) is no_better


def test_a_teacher_that_brought_nothing_is_asked_for_less(tmp_path):
    taught, few = PLAN.with_preset(objective="combine"), RatingCount(2, 28)
    with Progress(tmp_path) as progress:
        less = planning.weaken_teacher(taught, few, few, progress)
        assert (less.preset.rate_taught, less.preset.steps_taught) == (BALANCED.rate_taught / 2, 4)
        assert less.less_teacher_reason == "2 of 28 answers are liked after comments taught, 2 of 28 before"
        assert planning.weaken_teacher(taught, RatingCount(20, 28), few, progress) is taught
        assert planning.weaken_teacher(PLAN, few, few, progress) is PLAN


def test_a_plan_is_changed_by_nobody():
    with pytest.raises(AttributeError):
        PLAN.evidence = 0.5
    with pytest.raises(ValueError, match="frozen"):
        PLAN.preset.learning_rate = 1.0
    assert PLAN.with_preset(batch=2).preset.batch == 2 and PLAN.preset.batch == BALANCED.batch


def test_an_objective_that_does_not_exist_is_said_before_anything_loads(tmp_path):
    spec = RunSpec(1, "tiny", "tiny", 1, 0, tmp_path, overrides={"objective": "ppo"})
    with pytest.raises(RunError, match="no objective 'ppo'; there are mis-po, "):
        planning.start(spec)


def test_a_version_is_judged_by_what_people_said_of_its_own_answers():
    def rated(reward, version=2, human=True, lessons=()):
        return SimpleNamespace(reward=reward, version=version, human=human, lessons=lessons)

    samples = [rated(1.0), rated(-1.0), rated(0.0), rated(1.0, 1), rated(1.0, human=False)]
    samples.append(rated(1.0, lessons=("shorter",)))  # it was told what to say
    assert RatingCount.of(samples, 2) == (1, 2)


def test_the_next_run_hears_how_the_last_version_was_liked(tmp_path):
    """Its manifest says how its parent was, and by that the same comments are asked for less a second time."""
    model = tiny.make_model(tmp_path / "tiny")

    def go(name, lines, **spec):
        told = [line | {"reward": -1.0, "comment": "shorter"} for line in lines]
        out = io.StringIO()
        folder = tiny.run_folder(tmp_path / name / "run", model, told, **spec)
        with Progress(folder, out) as progress:
            result = loop.run(folder, progress, Stop())
        assert result["status"] == "passed", result["reason"]
        return {e["name"]: e["value"] for line in out.getvalue().splitlines() if (e := json.loads(line)).get("name")}

    first = go("first", tiny.sample_lines(model, 12))
    adapter = tmp_path / "first/out/v0001"
    assert json.loads((adapter / "manifest.json").read_bytes())["liked"] == [0, 12]
    fresh = tiny.sample_lines(model, 12, version=1, adapter=adapter, seed=5)
    again = {"version": 2, "parent": 1, "adapters": {"1": str(adapter)}, "out": str(tmp_path / "v0002")}
    second = go("second", fresh, **again)
    assert (first["rate_taught"], second["rate_taught"]) == (BALANCED.rate_taught, BALANCED.rate_taught / 2)
