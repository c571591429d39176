"""Two replies to one prompt train against each other: which ones, how much, and never by their ratings besides."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config import presets
from tests.harness import tiny
from trainer import loop, mis_po
from trainer.io.progress import Progress, Stop
from trainer.lessons import batch, pairs, reply_checks
from trainer.lessons.acceptance import Outcome
from trainer.lessons.lessons import Lesson
from trainer.lessons.samples import Sample
from trainer.mis_po import Terms
from trainer.policy.packing import Tokens
from trainer.run import steps

BALANCED = presets.resolve("balanced", {})
BETA, NLL = BALANCED.pair_beta, BALANCED.pair_nll


def lesson(rating, prompt, reward, old, **changes):
    tokens = Tokens((prompt,), tuple(range(5, 5 + len(old))))
    sample = Sample(rating, False, 0, reward, 1.0, True, tokens, np.array(old))
    return replace(tiny.lesson(sample, np.array(old)), **changes)


def correction(of):
    old = np.array([-3.0, -4.0])
    whole = np.ones(2)
    tokens = Tokens(of.tokens.prompt, (8, 9))
    return Lesson(of.sample, tokens, old, old, old, whole.astype(bool), whole, is_own=False, is_imitated=True)


def made(tmp_path, lessons, cause=None, **overrides):
    outcomes = {one.sample.rating: Outcome(False, cause, len(one.old), len(one.old), True) for one in lessons}
    with Progress(tmp_path, io.StringIO()) as progress:
        return pairs.make_pairs(presets.resolve("balanced", overrides), lessons, outcomes, progress)


def names(lessons):
    return [None if one.pair is None else (one.pair.name, one.pair.chosen) for one in lessons]


def test_the_liked_and_the_disliked_reply_to_one_prompt_are_a_pair(tmp_path):
    rated = [
        lesson("bad", 1, -1.0, [-1.0] * 4),
        lesson("alone", 2, 1.0, [-1.0] * 4),
        lesson("good", 1, 1.0, [-2.0] * 3),
    ]
    found = made(tmp_path, rated)
    assert names(found) == [("good bad", False), None, ("good bad", True)]
    assert found[1] is rated[1]
    # At the start both are what they are under the reference: σ(0) is a half.
    assert found[2].advantage == pytest.approx([NLL + BETA / 2 * 3] * 3)
    assert found[0].advantage == pytest.approx([-BETA / 2 * 4] * 4)


@pytest.mark.parametrize("trust", [1.0, 0.1, 0.0])
def test_picks_weigh_as_much_as_ratings_do_beside_a_teacher(tmp_path, trust):
    rated = [lesson("bad", 1, -1.0, [-1.0] * 4), lesson("good", 1, 1.0, [-2.0] * 3)]
    bad, good = made(tmp_path, rated, objective="combine", w_rl=trust)
    if not trust:
        assert [bad, good] == rated
        return
    assert good.advantage == pytest.approx([trust * (NLL + BETA / 2 * 3)] * 3)
    assert bad.advantage == pytest.approx([-trust * BETA / 2 * 4] * 4)


def test_what_the_filter_masks_stays_masked_in_a_pair(tmp_path):
    masked = np.array([True, False, True])
    found = made(tmp_path, [lesson("bad", 1, -1.0, [-1.0] * 3), lesson("good", 1, 1.0, [-2.0] * 3, keep=masked)])
    assert found[0].keep.all() and found[1].keep.tolist() == masked.tolist()


def test_no_reply_is_in_two_pairs_and_equal_ratings_make_none(tmp_path):
    rewards = [1.0, -1.0, 0.5, -0.5, 1.0, 0.2]
    found = made(tmp_path, [lesson(f"r{i}", 1, r, [-1.0]) for i, r in enumerate(rewards)])
    assert names(found) == [
        ("r0 r1", True), ("r0 r1", False), ("r2 r5", True), ("r4 r3", False), ("r4 r3", True), ("r2 r5", False),
    ]  # fmt: skip
    assert [one.pair.weight for one in found] == pytest.approx([1.0, 1.0, 0.15, 0.75, 0.75, 0.15])
    assert names(made(tmp_path, [lesson("a", 1, 1.0, [-1.0]), lesson("b", 1, 1.0, [-1.0])])) == [None, None]


@pytest.mark.parametrize("overrides", [{"pair_beta": 0.0}, {"objective": "grpo"}, {"objective": "kto"}])
def test_who_does_not_want_pairs_has_none(tmp_path, overrides):
    rated = [lesson("a", 1, 1.0, [-1.0]), lesson("b", 1, -1.0, [-1.0])]
    assert made(tmp_path, rated, **overrides) == rated


def test_what_may_not_train_is_in_no_pair(tmp_path):
    rated = [lesson("a", 1, 1.0, [-1.0]), lesson("b", 1, -1.0, [-1.0])]
    assert names(made(tmp_path, rated, cause="fresh-mismatch")) == [None, None]


def test_what_a_comment_teaches_is_in_no_pair(tmp_path):
    bad = lesson("bad", 1, -1.0, [-1.0])
    noted = replace(bad, sample=replace(bad.sample, comment="shorter"))
    rated = [lesson("good", 1, 1.0, [-1.0]), noted]
    assert names(made(tmp_path, rated, objective="combine", match="token")) == [None, None]
    assert names(made(tmp_path, rated))[1] is not None  # where nobody listens to comments


def test_a_correction_is_a_pair_with_what_it_corrects_and_is_imitated_as_ever(tmp_path):
    bad, other = lesson("bad", 1, -1.0, [-1.0] * 4), lesson("other", 1, 1.0, [-1.0])
    found = made(tmp_path, [bad, other, correction(bad)])
    assert names(found) == [("bad bad", False), None, ("bad bad", True)]
    assert found[2].advantage == pytest.approx([1 + BETA / 2 * 2] * 2)


log_probs = st.lists(st.floats(-6, -0.05), min_size=1, max_size=6)


@settings(deadline=None)
@given(log_probs, log_probs, st.integers(0, 99), st.floats(0.1, 1.0))
def test_what_a_pair_pushes_is_the_gradient_of_dpo(plus, minus, seed, reward):
    """Against autograd on equation 7 in float64, wherever the policy has moved to."""
    rng = np.random.default_rng(seed)
    both = [
        replace(lesson("a", 1, reward, plus), pair=pairs.Pair("a b", True, reward, NLL)),
        replace(lesson("b", 1, -reward, minus), pair=pairs.Pair("a b", False, reward, 0.0)),
    ]
    now = [one.old + rng.normal(0, 1, len(one.old)) for one in both]
    pushed = pairs.update_pairs(both, now, BETA)
    theta = torch.tensor(np.concatenate(now), requires_grad=True)
    ref, cut = torch.tensor(np.concatenate([one.ref for one in both])), len(plus)
    margin = BETA * ((theta - ref)[:cut].sum() - (theta - ref)[cut:].sum())
    loss = -reward * torch.nn.functional.logsigmoid(margin) - NLL * theta[:cut].mean()
    (expected,) = torch.autograd.grad(loss / 2, theta)  # the mean over the two replies

    terms = batch.make_terms(pushed, 2)
    terms = Terms(**{
        name: torch.tensor(np.asarray(getattr(terms, name)))
        for name in ("ref", "keep", "advantage", "share", "is_own")
    }, old=theta.detach().clone())  # where the run stands: no guard  # fmt: skip
    found, _ = mis_po.loss(torch, theta, terms, kl_ref=0.0, guard_low=0.5, guard_high=2.0)
    (gradient,) = torch.autograd.grad(found, theta)
    assert gradient.numpy() == pytest.approx(expected.numpy(), rel=1e-9, abs=1e-12)


def test_the_further_apart_a_pair_is_the_less_it_pushes():
    both = [
        replace(lesson("a", 1, 1.0, [-1.0] * 5), pair=pairs.Pair("a b", True, 1.0, 0.0)),
        replace(lesson("b", 1, -1.0, [-1.0] * 5), pair=pairs.Pair("a b", False, 1.0, 0.0)),
    ]
    sizes = [
        float(pairs.update_pairs(both, [both[0].old + far, both[1].old - far], BETA)[0].advantage[0])
        for far in (-1e6, -1.0, 0.0, 1.0, 1e6)
    ]
    assert sizes == sorted(sizes, reverse=True) and all(map(math.isfinite, sizes))
    assert sizes[0] == pytest.approx(BETA * 5) and sizes[-1] == pytest.approx(0.0, abs=1e-6)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 8), st.integers(1, 2))
def test_both_sides_of_a_pair_are_in_one_step(single, paired, size, passes):
    alone = [lesson(f"s{i}", 100 + i, 1.0 if i % 2 else -1.0, [-1.0]) for i in range(single)]
    sides = [
        replace(lesson(f"p{i}{chosen}", i, 1.0, [-1.0]), pair=pairs.Pair(f"p{i}", chosen, 1.0, 0.0))
        for chosen in (True, False)
        for i in range(paired)
    ]
    teaching = alone + sides
    if not teaching:
        return
    plan = steps.plan_steps(teaching, BALANCED.model_copy(update={"batch": size, "passes": passes}), 3)
    assert all(plan)
    for step in plan:
        inside = [teaching[i].pair.name for i in step if teaching[i].pair]
        assert all(inside.count(name) == 2 for name in inside)
    assert sorted(i for step in plan for i in step) == sorted(list(range(len(teaching))) * passes)


def test_a_run_of_pairs_drives_them_apart(tmp_path, model, monkeypatch):
    for bound, none in (("MISMATCH", ()), ("GARBAGE", 99.0)):  # the model would say nothing of the kind
        monkeypatch.setattr(reply_checks, bound, none)
    lines = tiny.sample_lines(model, 12, tokens=10)
    for n, line in enumerate(lines):  # each two are of one prompt
        asked = lines[n - n % 2]
        line |= {name: asked[name] for name in ("prompt_token_ids", "messages")} | {"split": "train"}
        line |= {"exact": False, "text": f"answer {n * n}", "logprobs": None}
    out = io.StringIO()
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"learning_rate": 3e-3})
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, Stop())
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert result["status"] == "passed", result["reason"]
    assert next(e["value"] for e in events if e["event"] == "choice" and e["name"] == "pairs") == 6
    assert all(outcome["used"] for outcome in result["samples"].values())
    assert result["gate"]["replay"]["value"] > 0  # the chosen rose against the others
