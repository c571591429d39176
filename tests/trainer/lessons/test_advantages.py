"""How much each token is pushed: by its credit where a critic can tell, else by its reply's rating, spared or whole."""

import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer.io.progress import Progress
from trainer.lessons import advantages
from trainer.lessons.critic import NO_CRITIC
from trainer.lessons.teacher import TeacherTargets
from trainer.policy.packing import Tokens


class Found(NamedTuple):
    values: list  # in the samples' order
    credited: frozenset
    targets: TeacherTargets


def pushed(tmp_path, model, samples, taught=None, **overrides):
    scorer = tiny.scorer(tmp_path, model)
    preset = presets.resolve("balanced", overrides)
    scored, targets = tiny.read(scorer, samples), TeacherTargets(**(taught or {}))
    with Progress(tmp_path) as progress:
        ratings, flawed = advantages.rating_advantages(scorer.spec, preset, samples)
        assert not flawed
        values = advantages.balanced(preset, ratings)
        kept = advantages.without_separable_hints(values, preset, scored, targets, scorer, progress, reading=NO_CRITIC)
        pushed = advantages.token_advantages(values, preset, scored, kept, scorer, progress)
    events = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    found = Found([*pushed.values.values()], pushed.credited, kept)
    return found, ratings, {e["name"]: e["value"] for e in events if e["event"] == "choice"}


def test_what_a_critic_can_tell_is_pushed_where_it_was_earned(tmp_path, model):
    samples = tiny.rated(model, 32)
    found, _, said = pushed(tmp_path, model, samples)
    assert said["pushed"] == "by token"
    assert found.credited == {s.rating for s in samples}
    assert all(each.shape == (len(s.tokens.reply),) for s, each in zip(samples, found.values, strict=True))
    each = np.stack(found.values)
    assert (each >= 0).all()
    liked = each[[s.reward > 0 for s in samples]]
    assert liked[:, -1].sum() > 0.5 * liked.sum() and liked[:, -1].sum() > 10 * liked[:, :-1].sum(0).mean()


def test_what_no_critic_can_tell_is_pushed_alike_and_both_signs_weigh_the_same(tmp_path, model):
    samples = tiny.rated(model, 32, tell=False)
    found, _, said = pushed(tmp_path, model, samples)
    assert said["pushed"] == "even" and not found.credited
    assert all(len(set(each)) == 1 for each in found.values)  # as vague as the base, so none is spared
    assert sum(each[0] for each in found.values) == pytest.approx(0.0)
    assert all(each[0] * sample.reward > 0 for each, sample in zip(found.values, samples, strict=True))


def test_without_balance_a_rating_is_its_own_advantage(tmp_path, model):
    samples = tiny.rated(model, 8, tell=False)
    found, values, _ = pushed(tmp_path, model, samples, balance=False, credit=1.0)
    assert values == {s.rating: s.reward for s in samples}
    assert [each[0] for each in found.values] == pytest.approx([*values.values()])


def test_a_rating_whose_teacher_is_known_pushes_nothing_of_its_own(tmp_path, model):
    samples = tiny.rated(model, 8, tell=False)
    known = samples[-1]
    taught = {"distributions": {known.rating: None}}
    found, _, _ = pushed(tmp_path, model, samples, taught, objective="combine", credit=1.0)
    by_rating = dict(zip([s.rating for s in samples], found.values, strict=True))
    assert not by_rating[known.rating].any()
    assert all(each.any() for rating, each in by_rating.items() if rating != known.rating)


@pytest.mark.parametrize("credit", [0.25, 1.0])
def test_where_every_dislike_has_a_comment_likes_alone_compare_nothing(tmp_path, model, credit):
    samples = tiny.rated(model, 16, tell=False)
    taught = {"distributions": {s.rating: None for s in samples if s.reward < 0}}
    found, _, said = pushed(tmp_path / "all", model, samples, taught, objective="combine", credit=credit)
    assert said["pushed"] == "none" and not any(each.any() for each in found.values)
    taught["distributions"].popitem()
    found, _, said = pushed(tmp_path / "but one", model, samples, taught, objective="combine", credit=credit)
    assert said.get("pushed") == (None if credit == 1 else "even")
    assert {np.sign(each[0]) for each in found.values} == {-1.0, 0.0, 1.0}


def test_dislikes_without_a_comment_push_where_no_like_is_left(tmp_path, model):
    samples = [s for s in tiny.rated(model, 16, tell=False) if s.reward < 0]
    taught = {"distributions": {samples[0].rating: None}}
    found, _, said = pushed(tmp_path, model, samples, taught, objective="combine")
    assert said["pushed"] == "even"
    assert [each.any() for each in found.values] == [False] + [True] * (len(samples) - 1)


def test_what_a_critic_can_tell_is_pushed_where_every_dislike_has_a_comment_too(tmp_path, model):
    samples = tiny.rated(model, 32)
    taught = {"distributions": {s.rating: None for s in samples if s.reward < 0}}
    found, _, said = pushed(tmp_path, model, samples, taught, objective="combine")
    assert said["pushed"] == "by token" and found.credited == {s.rating for s in samples if s.reward > 0}


def test_with_match_token_the_teacher_says_which_way_each_token_goes(tmp_path, model):
    samples = tiny.rated(model, 8, tell=False)
    hinted, plain = samples[-1], samples[0]
    taught = {"hinted": {hinted.rating: Tokens((1, *hinted.tokens.prompt), hinted.tokens.reply)}}
    more = {"objective": "combine", "match": "token", "credit": 1.0}
    found, _, _ = pushed(tmp_path / "with", model, samples, taught, **more)
    without, _, _ = pushed(tmp_path / "without", model, samples, **more)
    change = {s.rating: a - b for s, a, b in zip(samples, found.values, without.values, strict=True)}
    assert np.ptp(change[hinted.rating]) > 0  # a word on each token, not one on the reply
    assert not change[plain.rating].any()


def test_a_liked_reply_that_says_nothing_is_a_flaw_and_pushes_nothing(tmp_path, model):
    empty, good = tiny.rated(model, 2, liked=1.0)
    empty = replace(empty, flags=("empty",))
    scorer = tiny.scorer(tmp_path, model)
    values, flawed = advantages.rating_advantages(scorer.spec, presets.resolve("balanced", {}), [empty, good])
    assert flawed == {empty.rating: "empty"} and [*values.values()] == [0.0, 1.0]


def labelled(samples):
    """The same as a judge sees them: bad, or nothing against them."""
    return [replace(s, human=False, followed=True, weight=0.5, reward=-1.0 if s.reward < 0 else 0.0) for s in samples]


def test_beside_what_a_judge_finds_bad_all_else_counts_as_much(tmp_path, model):
    samples = labelled(tiny.rated(model, 32, liked=0.25))
    scorer = tiny.scorer(tmp_path, model)
    preset = presets.resolve("balanced", {})
    values, _ = advantages.rating_advantages(scorer.spec, preset, samples)
    assert values == {s.rating: -0.5 if s.reward else 0.5 for s in samples}
    people = [replace(one, rating=f"p{at}") for at, one in enumerate(tiny.rated(model, 4))]
    with_people, _ = advantages.rating_advantages(replace(scorer.spec, baseline=0.5), preset, [*samples, *people])
    assert with_people == pytest.approx(values | {s.rating: s.reward - 0.5 for s in people})


def test_what_nothing_was_found_against_pushes_nothing_alone(tmp_path, model):
    fine = [s for s in labelled(tiny.rated(model, 8)) if not s.reward]
    spec = replace(tiny.scorer(tmp_path, model).spec, baseline=-0.4)
    preset = presets.resolve("balanced", {})
    assert set(advantages.rating_advantages(spec, preset, fine)[0].values()) == {0.0}
    praised = [replace(s, reward=1.0) for s in fine]
    values, _ = advantages.rating_advantages(spec, preset, praised)
    assert [*values.values()] == pytest.approx([0.5 * 1.4] * len(fine))


def test_a_judges_hints_are_left_out_where_its_labels_can_be_told_apart(tmp_path, model):
    people, samples = tiny.rated(model, 32), labelled(tiny.rated(model, 32))
    for name, given, left in (("judge", samples, 0), ("people", people, sum(s.reward < 0 for s in people))):
        taught = {"distributions": {s.rating: None for s in given if s.reward < 0}}
        found, _, said = pushed(tmp_path / name, model, given, taught, objective="combine")
        assert said["pushed"] == "by token" and len(found.targets.distributions) == left
        assert len(taught["distributions"]) == sum(s.reward < 0 for s in given), "what was given stays as it was"
        assert ("hints" in said) is (name == "judge")
        assert len(found.credited) == len(given) - left


def test_a_judges_hints_teach_where_no_critic_can_tell(tmp_path, model):
    for tell, fine in ((False, True), (True, False)):
        samples = [s for s in labelled(tiny.rated(model, 16, tell=tell)) if fine or s.reward]
        taught = {"distributions": {s.rating: None for s in samples if s.reward}}
        found, _, said = pushed(tmp_path / f"{tell}", model, samples, taught, objective="combine")
        assert len(found.targets.distributions) == sum(bool(s.reward) for s in samples) and "hints" not in said
