"""Episodes: advantages by group and turn, the loss averaged by episode, and the packed gradient against float64."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import presets
from tests.harness import tiny
from trainer import objectives
from trainer.io.progress import Progress
from trainer.lessons import trajectories
from trainer.lessons.batch import score
from trainer.lessons.lessons import Lesson
from trainer.lessons.line_members import BadLine
from trainer.lessons.samples import Sample
from trainer.lessons.trajectories import RewardedTurn, advantages, turn_in
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.run import steps

TOKENS = Tokens((1, 2), (3,))


def turn(episode: str, reward: float | None, at: int = 0, of: int = 1, **more: Any) -> Sample:
    tokens = more.pop("tokens", TOKENS)
    part = RewardedTurn(episode, more.pop("group", "g"), reward, at, of, more.pop("own", None))
    return Sample(f"{episode}-{at}", False, 0, reward or 0.0, 1.0, False, tokens, None, episode=part)


def of(samples: list[Sample], **more: Any) -> list[float]:
    return advantages(samples, **({"discount": 1.0, "baseline": 0.0, "clip": 2.0} | more))[0]


def test_an_outcome_is_compared_with_its_group() -> None:
    assert of([turn("a", 1.0), turn("b", 0.0), turn("c", 0.0), turn("d", 0.0)]) == [0.75, -0.25, -0.25, -0.25]


def test_all_turns_get_the_outcome_discounted_backwards() -> None:
    samples = [turn("a", 1.0, at, 3) for at in range(3)] + [turn("b", 0.0)]
    assert of(samples, discount=0.5) == [0.125, 0.25, 0.5, -0.5]


def test_a_turns_own_reward_and_what_comes_after_it() -> None:
    samples = [turn("a", None, 0, 2, own=1.0), turn("a", None, 1, 2, own=0.0)]
    samples += [turn("b", None, 0, 2, own=0.0), turn("b", None, 1, 2, own=1.0)]
    assert of(samples, discount=0.5) == [0.25, -0.5, -0.25, 0.5]


def test_one_alone_is_compared_with_the_baseline() -> None:
    samples = [turn("a", 1.0, group=None), turn("b", 1.0, group=None), turn("c", 0.0, group="alone")]
    assert of(samples, baseline=0.25) == [0.75, 0.75, -0.25]


def test_groups_are_counted() -> None:
    samples = [turn(name, reward, group=name[0]) for name, reward in (("a1", 1), ("a2", 0), ("b1", 1), ("b2", 1))]
    _, groups = advantages([*samples, turn("x", 1.0, group=None)], discount=1.0, baseline=0.0, clip=2.0)
    assert (groups.teaching, groups.equal, groups.single) == (1, 1, 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1, 1), st.integers(1, 3)), min_size=1, max_size=12))
def test_outcomes_of_a_group_sum_to_nothing_and_equal_ones_push_exactly_nothing(
    drawn: list[tuple[int, float, int]],
) -> None:
    samples = [
        turn(f"e{n}", reward, at, turns, group=str(group))
        for n, (group, reward, turns) in enumerate(drawn)
        for at in range(turns)
    ]
    found = dict(zip((s.rating for s in samples), of(samples, clip=9.0), strict=True))
    for group in {group for group, _, _ in drawn}:
        members = [(n, reward) for n, (g, reward, _) in enumerate(drawn) if g == group]
        if len(members) > 1:
            values = [found[f"e{n}-0"] for n, _ in members]
            assert sum(values) == pytest.approx(0, abs=1e-9)
            if len({reward for _, reward in members}) == 1:
                assert set(values) == {0.0}


def test_an_episode_is_one_however_long() -> None:
    samples = [turn("a", 1.0, at, 3, tokens=Tokens((1,), (2,) * (at + 1))) for at in range(3)] + [turn("b", 0.0)]
    assert trajectories.units(samples) == 2
    assert trajectories.spreads(samples) == [6, 6, 6, 1]
    rated = replace(samples[3], episode=None)
    assert trajectories.units([*samples, rated, rated]) == 4 and trajectories.spreads([rated]) == [None]


@pytest.mark.parametrize(
    "episode",
    ["x", {}, {"id": "a", "turn": 1, "turns": 1}, {"id": "a", "turn": 0, "turns": 1, "reward": "1"},
     {"id": "a", "turn": 0, "turns": 1, "reward": 2}, {"id": "a", "turn": 0, "turns": 1, "reward": True}],
)  # fmt: skip
def test_a_line_that_is_wrong(episode: Any) -> None:
    with pytest.raises(BadLine):
        turn_in({"episode": episode})


def chained(episode: str, reward: float, turns: int, seed: int) -> list[Sample]:
    """An episode that resends its history: each prompt has the whole of the turn before, and a tool's words."""
    rng = np.random.default_rng(seed)
    prompt: tuple[int, ...] = (1, *(int(t) for t in rng.integers(10, 90, 4)))
    found = []
    for at in range(turns):
        reply = tuple(int(t) for t in rng.integers(10, 90, int(rng.integers(2, 6))))
        found.append(turn(episode, reward, at, turns, tokens=Tokens(prompt, reply)))
        prompt = (*prompt, *reply, *(int(t) for t in rng.integers(10, 90, 3)))
    return found


def lessons(samples: list[Sample], discount: float, theta: list[Any] | None = None) -> list[Lesson]:
    values = of(samples, discount=discount)
    rng = np.random.default_rng(7)
    made = []
    for at, (sample, value, spread) in enumerate(zip(samples, values, trajectories.spreads(samples), strict=True)):
        n = len(sample.tokens.reply)
        old = (theta[at] if theta else -4.0) + rng.normal(0, 0.05, n)
        keep = rng.uniform(size=n) < 0.9
        made.append(Lesson(sample, sample.tokens, old, old, old, keep, np.full(n, value), spread=spread))
    return made


@pytest.mark.parametrize("objective", ["mis-po", "grpo"])
def test_the_packed_gradient_of_a_group_equals_a_float64_reference(tmp_path: Any, objective: str) -> None:
    """Four episodes of one to five turns; the reference computes each turn by itself, one token at a time."""
    policy = tiny.policy(tiny.make_model(tmp_path / "tiny"))
    policy._causal.double()
    policy._head = lambda hidden: policy._causal.get_output_embeddings()(hidden)  # type: ignore[method-assign]
    samples = [s for n, r in enumerate((1.0, 0.0, 1.0, -0.5)) for s in chained(f"e{n}", r, (5, 1, 3, 2)[n], n)]
    preset = presets.resolve("balanced", {"objective": objective, "kl_ref": 0.0})
    for name, value in policy.trained.items():
        value.data = torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name))).double() * 0.05
    batch = lessons(samples, 0.9, score(policy, [s.tokens for s in samples]))
    with Progress(tmp_path, io.StringIO()) as progress:
        steps.accumulate(policy, batch, objectives.make_loss(preset), progress, objective=objectives.of(preset))
    packed = {name: p.grad.clone() for name, p in policy.trained.items()}
    assert packing.size([s.tokens for s in samples], trees=True) < sum(len(s.tokens.computed) for s in samples)

    for p in policy.trained.values():
        p.grad = None
    total = torch.zeros((), dtype=torch.float64)
    by_episode: dict[str, int] = {}
    for lesson in batch:
        assert lesson.sample.episode is not None
        by_episode[lesson.sample.episode.episode] = by_episode.get(lesson.sample.episode.episode, 0) + len(lesson.old)
    for lesson in batch:
        assert lesson.sample.episode is not None
        ids = torch.tensor([[*lesson.tokens.prompt, *lesson.tokens.reply]])
        logits = policy._causal(input_ids=ids, use_cache=False).logits[0]
        for t, token in enumerate(lesson.tokens.reply):
            theta = logits[len(lesson.tokens.prompt) - 1 + t].log_softmax(-1)[token]
            weight = 1 / (by_episode[lesson.sample.episode.episode] * len(by_episode))
            push = weight * float(lesson.keep[t]) * float(lesson.advantage[t])
            if objective == "mis-po":
                total = total - push * theta
            else:
                total = total - push * (theta - float(np.float32(lesson.old[t]))).exp()
    total.backward()
    gap = sum(float((p.grad - packed[name]).pow(2).sum()) for name, p in policy.trained.items()) ** 0.5
    norm = sum(float(p.grad.pow(2).sum()) for p in policy.trained.values()) ** 0.5
    assert norm > 1e-3 and gap <= 1e-6 * norm, (gap, norm)


def test_twenty_turns_that_resend_their_history_cost_their_distinct_tokens() -> None:
    """Also where the episode is longer than the budget of a micro-batch, in which the turns before cost nothing."""
    samples = [s for n in range(4) for s in chained(f"e{n}", 1.0, 20, n)]
    sequences = [s.tokens for s in samples]
    distinct = packing.size(sequences, trees=True)
    for budget in (packing.Budget(4096), packing.Budget(64, 64)):
        cost = sum(
            packing.size([sequences[i] for i in members], trees=True) for members in packing.group(sequences, budget)
        )
        assert cost <= 1.2 * distinct, (cost, distinct)
    assert sum(len(s.computed) for s in sequences) > 5 * distinct


def test_the_turns_of_an_episode_are_in_one_step() -> None:
    samples = [s for n in range(9) for s in chained(f"e{n}", float(n % 2), 3, n)]
    preset = presets.resolve("balanced", {"batch_episodes": 4})
    plan = steps.plan_steps(lessons(samples, 1.0), preset, 0)
    for n in range(9):
        assert len({at for at, step in enumerate(plan) for i in step if samples[i].rating.startswith(f"e{n}-")}) == 1
