"""Ratings that say nothing do not train, and the run says why; comments and corrections do all the same."""

import io
import json
import random

import pytest

from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.lessons.samples import Sample, Template
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import ratings
from trainer.run.gate import Bounds


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make_model(tmp_path_factory.mktemp("models") / "tiny")


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


def test_few_ratings_are_not_judged_by_chance(template):
    rated = [sample([5, 6, 7 + n], 1.0 if n % 2 else -1.0) for n in range(8)]
    check = ratings.chance(rated, template, Bounds())
    assert check.ok and check.value is None
    assert check.note == "skipped: 4 good and 4 bad ratings are too few to tell from chance"
    one_good = [sample([5, 6, 7 + n], -1.0 if n else 1.0) for n in range(40)]
    assert ratings.chance(one_good, template, Bounds()).value is None


def test_a_taste_passes_and_a_coin_does_not(template):
    rng = random.Random(0)
    replies = [[rng.randrange(60, 200) for _ in range(rng.randint(4, 40))] for _ in range(32)]
    taste = [sample(r, 1.0 if len(r) < 15 else -1.0) for r in replies]
    coin = [sample(r, rng.choice((1.0, -1.0))) for r in replies]
    assert ratings.why(ratings.judge(taste, template, Bounds())) is None
    checks = ratings.judge(coin, template, Bounds())
    assert not checks["chance"].ok
    assert "drawn at random" in ratings.why(checks)
    assert ratings.why(ratings.judge(coin, template, Bounds(max_chance=1.0))) is None


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


def test_ratings_drawn_at_random_train_nothing(tmp_path, model, lines, monkeypatch):
    monkeypatch.setattr(TorchPolicy, "step", lambda *_: pytest.fail("an optimiser step was taken"))
    rng = random.Random(5)
    drawn = [line | {"reward": rng.choice((1.0, -1.0))} for line in lines]
    result, _ = go(strict(tmp_path / "run", model, drawn))
    assert result["status"] == "empty"
    assert "drawn at random would fit" in result["reason"]
    assert result["gate"]["chance"]["value"] > result["gate"]["chance"]["bound"] == 0.01


def test_comments_teach_where_the_ratings_do_not_train(tmp_path, model, lines):
    told = [line | {"reward": -1.0, "comment": "shorter" if n % 3 == 0 else None} for n, line in enumerate(lines)]
    result, events = go(strict(tmp_path / "run", model, told))
    assert result["status"] == "passed", result["reason"]
    assert any("only comments and corrections train" in e["message"] for e in events if e["event"] == "warning")
    commented = {line["rating"] for line in told if line["comment"] and line["split"] == "train"}
    assert {rating for rating, outcome in result["samples"].items() if outcome["used"]} == commented
