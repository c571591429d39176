"""Ratings that say nothing do not train, and the run says why; comments and corrections do all the same."""

import io
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.lessons.chat_template import Template
from trainer.lessons.samples import Sample
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import ratings, reach
from trainer.run.gate import Bounds, Check


@pytest.fixture(scope="module")
def lines(model):
    return tiny.sample_lines(model, count=32)


def go(folder):
    out = io.StringIO()
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, Stop())
    return result, [json.loads(line) for line in out.getvalue().splitlines()]


def strict(folder, model, lines, **spec):
    return tiny.run_folder(folder, model, lines, gate={**tiny.LOOSE, "max_chance": 0.01}, **spec)


def sample(reply, reward):
    return Sample("rt", False, 0, reward, 1.0, True, tiny.Tokens((1,), tuple(reply)), None)


@pytest.fixture(scope="module")
def template():
    return Template(tiny.tokenizer())


def test_ratings_that_are_all_the_same_have_no_contrast():
    same = ratings.contrast([sample([5], 1.0), sample([6], 1.0)])
    assert not same.ok
    assert same.note == "all 2 ratings are the same"
    assert ratings.contrast([sample([5], 1.0), sample([6], 0.5)]).ok
    assert ratings.contrast([]).ok


ASKED = Bounds(max_chance=0.01)


def test_few_ratings_are_not_judged_by_chance(template):
    rated = [sample([5, 6, 7 + n], 1.0 if n % 2 else -1.0) for n in range(8)]
    check = ratings.chance(rated, template, ASKED)
    assert check.ok and check.value is None
    assert check.note == "skipped: 4 good and 4 bad ratings are too few to tell from chance"
    one_good = [sample([5, 6, 7 + n], -1.0 if n else 1.0) for n in range(40)]
    assert ratings.chance(one_good, template, ASKED).value is None
    assert ratings.chance(one_good, template, Bounds()).value > 0.01


def test_a_taste_passes_and_a_coin_does_not(template):
    rng = random.Random(0)
    replies = [[rng.randrange(60, 200) for _ in range(rng.randint(4, 40))] for _ in range(32)]
    taste = [sample(r, 1.0 if len(r) < 15 else -1.0) for r in replies]
    coin = [sample(r, rng.choice((1.0, -1.0))) for r in replies]
    assert ratings.problem(ratings.judge(taste, template, ASKED)) is None
    checks = ratings.judge(coin, template, ASKED)
    assert not checks["chance"].ok
    assert "drawn at random" in ratings.problem(checks)
    advised = ratings.judge(coin, template, Bounds())
    assert ratings.problem(advised) is None and advised["chance"].value == checks["chance"].value
    assert reach.evidence(advised) < 0.7 and reach.evidence(ratings.judge(taste, template, Bounds())) == 1.0


def test_ratings_of_answers_about_pictures_are_looked_at_beside_them(template):
    """Short answers where it is a dog, long ones where it is a cat; the newest picture is what is answered."""
    rng = random.Random(0)
    kinds = [rng.choice(("dog", "cat")) for _ in range(48)]
    replies = [[rng.randrange(60, 200) for _ in range(rng.randint(4, 40))] for _ in kinds]
    rated = [
        replace(
            sample(reply, 1.0 if (len(reply) < 22) == (kind == "dog") else -1.0),
            messages=(
                {"role": "user", "content": [{"type": "image", "sha256": "old"}]},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": [{"type": "image", "sha256": kind}, {"type": "text", "text": "and this?"}]},
                {"role": "user", "content": "now?"},
            ),
        )
        for reply, kind in zip(replies, kinds, strict=True)
    ]
    asked = []

    def features(names):
        asked.append(list(names))
        return np.array([[1.0, 0.0] if name == "dog" else [0.0, 1.0] for name in names])

    check = ratings.judge(rated, template, Bounds(), features)["chance"]
    assert check.value <= 0.01 and asked == [["cat", "dog"]], "each picture once, and none that is not answered"
    assert ratings.judge(rated, template, Bounds())["chance"].value > 0.05
    assert ratings.go_by_pictures(rated, template, features)
    short = [replace(one, reward=1.0 if len(one.tokens.reply) < 22 else -1.0) for one in rated]
    assert not ratings.go_by_pictures(short, template, features)
    assert not ratings.go_by_pictures([replace(one, messages=()) for one in rated], template, features)


def test_labels_of_a_judge_are_weighed_like_ratings(template):
    rng = random.Random(0)
    replies = [[rng.randrange(60, 200) for _ in range(rng.randint(4, 40))] for _ in range(32)]
    labelled = [replace(sample(r, rng.choice((1.0, -1.0))), human=False, followed=True) for r in replies]
    checks = ratings.judge(labelled, template, Bounds())
    assert reach.evidence(checks) < 0.7 and checks["chance"].note is not None
    one_side = [replace(one, reward=-1.0) for one in labelled]
    assert "nothing to compare" in (ratings.problem(ratings.judge(one_side, template, Bounds())) or "")
    programs = [replace(one, followed=False) for one in labelled]
    assert ratings.judge(programs, template, Bounds()).keys() == ratings.judge([], template, Bounds()).keys()
    assert ratings.judge(programs, template, Bounds())["contrast"].note == "skipped: no ratings"


def test_a_run_of_labels_that_say_nothing_takes_a_smaller_step(tmp_path, model, lines):
    rng = random.Random(1)
    by_judge = {"human": False, "followed": True, "weight": 0.5}
    drawn = [line | by_judge | {"reward": rng.choice((1.0, -1.0))} for line in lines]
    result, events = go(tiny.run_folder(tmp_path / "run", model, drawn, gate=tiny.LOOSE))
    assert result["status"] == "passed" and result["gate"]["chance"]["value"] > 0.01
    assert "reach" in {e["name"] for e in events if e["event"] == "choice"}
    assert "Its step was a smaller one" in result["reason"]


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_one_constant_rating_trains_nothing(tmp_path, model, lines, monkeypatch, value):
    monkeypatch.setattr(TorchPolicy, "step", lambda *_: pytest.fail("an optimiser step was taken"))
    result, _ = go(strict(tmp_path / "run", model, [line | {"reward": value} for line in lines]))
    assert result["status"] == "empty"
    assert (
        result["reason"] == "These ratings do not train: all 32 ratings are the same, so there is nothing to compare."
    )
    assert not result["gate"]["contrast"]["ok"]
    assert not any(outcome["used"] for outcome in result["samples"].values())


def test_ratings_drawn_at_random_train_nothing_where_that_is_asked_for(tmp_path, model, lines, monkeypatch):
    monkeypatch.setattr(TorchPolicy, "step", lambda *_: pytest.fail("an optimiser step was taken"))
    rng = random.Random(5)
    drawn = [line | {"reward": rng.choice((1.0, -1.0))} for line in lines]
    result, _ = go(strict(tmp_path / "run", model, drawn))
    assert result["status"] == "empty"
    assert "drawn at random would fit" in result["reason"]
    assert result["gate"]["chance"]["value"] > result["gate"]["chance"]["bound"] == 0.01


def test_weak_evidence_moves_the_policy_a_little_and_says_so(tmp_path, model, lines):
    rng = random.Random(1)
    drawn = [line | {"reward": rng.choice((1.0, -1.0))} for line in lines]
    overrides = {"learning_rate": 1e-2, "passes": 2, "likely": 1.0}  # unbounded, it goes 0.09 nats
    gate = tiny.LOOSE
    result, events = go(tiny.run_folder(tmp_path / "run", model, drawn, gate=gate, overrides=overrides))
    assert result["status"] == "passed", result["reason"]
    chance = result["gate"]["chance"]
    assert chance["ok"] and chance["value"] > 0.01 and chance["bound"] == 1.0
    told = {e["name"]: e for e in events if e["event"] == "choice"}
    assert 0.005 <= told["reach"]["value"] < 0.2 and "drawn at random would fit" in told["reach"]["why"]
    assert "nats of sense" in told["way"]["why"] and told["way"]["value"] < 1
    assert result["metrics"]["kl_old"] <= 1.2 * reach.FULL
    assert "Its step was a smaller one" in result["reason"]
    used = {rating for rating, outcome in result["samples"].items() if outcome["used"]}
    assert used == {line["rating"] for line in drawn if line["split"] == "train"}


def test_the_more_the_ratings_say_the_further_a_run_may_go():
    preset = presets.resolve("balanced", {})
    at = [reach.free_nats(preset, evidence, credited=False) for evidence in (0.0, 0.3, 0.6, 0.99)]
    assert at[0] == pytest.approx(preset.drift_weak) and at == sorted(at) and at[-1] < reach.FULL
    assert reach.free_nats(preset, 1.0, credited=False) is None
    assert reach.free_nats(preset, 0.0, credited=True) == preset.drift_credited
    of_p = [reach.evidence({"chance": Check(p, 1.0, True)}) for p in (1.0, 0.5, 0.1, 0.01, 1e-4)]
    assert of_p == sorted(of_p) and of_p[0] == 0.0 and of_p[-1] == of_p[-2] == 1.0
    assert reach.evidence({"chance": Check(None, 1.0, True)}) == reach.evidence({}) == 1.0


def test_beside_comments_weak_ratings_weigh_less(tmp_path, model, lines):
    rng = random.Random(1)
    told = [line | {"reward": rng.choice((1.0, -1.0))} for line in lines]
    told[0] |= {"reward": -1.0, "comment": "shorter"}
    result, events = go(tiny.run_folder(tmp_path / "run", model, told, gate=tiny.LOOSE))
    assert result["status"] == "passed", result["reason"]
    weight = [e for e in events if e["event"] == "choice" and e["name"] == "w_rl"][-1]
    assert 0 <= weight["value"] < 0.9, weight
    assert "drawn at random" in weight["why"]


def test_comments_teach_where_the_ratings_do_not_train(tmp_path, model, lines):
    told = [line | {"reward": -1.0, "comment": "shorter" if n % 3 == 0 else None} for n, line in enumerate(lines)]
    result, events = go(strict(tmp_path / "run", model, told))
    assert result["status"] == "passed", result["reason"]
    assert any("only comments and corrections train" in e["message"] for e in events if e["event"] == "warning")
    commented = {line["rating"] for line in told if line["comment"] and line["split"] == "train"}
    assert {rating for rating, outcome in result["samples"].items() if outcome["used"]} == commented
