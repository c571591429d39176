"""Turns of episodes: what each is worth, compared with the other attempts at its task.

Owns the group's baseline, the backward discount, which groups teach, and the weight of an episode: each weighs the
same, however long it is. A = reward - group mean, not divided by the group's deviation (arXiv 2503.20783). Not here:
the loss (mis_po), how turns share tokens (policy.tree).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.lessons.line_members import BadLine

if TYPE_CHECKING:
    from trainer.lessons.samples import Sample


@dataclass(frozen=True, slots=True)
class RewardedTurn:
    """Where a sample stands in its episode."""

    episode: str
    group: str | None  # None: compared with the running baseline
    reward: float | None  # of the outcome, -1 to 1
    turn: int  # from 0
    turns: int
    turn_reward: float | None = None  # of this very turn


@dataclass(frozen=True, slots=True)
class Groups:
    teaching: int
    equal: int  # all of whose episodes are worth the same
    single: int  # episodes compared with the baseline


def turn_in(line: Mapping[str, Any]) -> RewardedTurn | None:
    """Raises BadLine."""
    episode = line.get("episode")
    if episode is None:
        return None
    if not isinstance(episode, dict):
        raise BadLine("`episode` is not an object")
    try:
        turn = RewardedTurn(
            str(episode["id"]),
            None if episode.get("group") is None else str(episode["group"]),
            _reward(episode.get("reward")),
            int(episode["turn"]),
            int(episode["turns"]),
            _reward(episode.get("turn_reward")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadLine(f"`episode` is wrong: {error}") from None
    if not 0 <= turn.turn < turn.turns:
        raise BadLine(f"turn {turn.turn} of {turn.turns} cannot be")
    return turn


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        raise ValueError(f"reward {value!r} is not a number from -1 to 1")
    return float(value)


def are_episodes(samples: Sequence[Sample]) -> bool:
    """Tell whether these are turns of episodes. A run has either those or rated replies."""
    return any(sample.episode is not None for sample in samples)


def advantages(
    samples: Sequence[Sample], *, discount: float, baseline: float, clip: float
) -> tuple[list[float], Groups]:
    """A of each sample, all of episodes; and how many groups teach.

    Where only outcomes R are known, A_t = γ^(n-1-t) (R - mean R of the group). Where single turns were rewarded, G_t =
    r_t + γ G_(t+1), with the outcome added to the last turn. A_t = G_t - mean of G_t over the members that came to turn
    t. A member on its own is compared with `baseline`, as is an episode without a group.
    """
    groups: dict[str, dict[str, list[RewardedTurn]]] = {}
    for sample in samples:
        turn = _turn(sample)
        name = f"episode {turn.episode}" if turn.group is None else f"group {turn.group}"
        groups.setdefault(name, {}).setdefault(turn.episode, []).append(turn)
    advantage_of: dict[tuple[str, int], float] = {}
    teaching = equal = single = 0
    for episodes in groups.values():
        group_advantages = _group_advantages(list(episodes.values()), discount, baseline)
        advantage_of |= group_advantages
        if len(episodes) == 1:
            single += 1
        elif any(group_advantages.values()):
            teaching += 1
        else:
            equal += 1
    turns = [_turn(sample) for sample in samples]
    values = [max(-clip, min(clip, advantage_of[turn.episode, turn.turn])) for turn in turns]
    return values, Groups(teaching, equal, single)


def _group_advantages(
    members: Sequence[Sequence[RewardedTurn]], discount: float, baseline: float
) -> dict[tuple[str, int], float]:
    """A by episode and turn."""
    if any(turn.turn_reward is not None for turns in members for turn in turns):
        returns = {turns[0].episode: _returns(turns, discount) for turns in members}
        means: dict[int, list[float]] = {}
        for values in returns.values():
            for turn, value in values.items():
                means.setdefault(turn, []).append(value)
        base = {turn: _base(values, len(members), baseline) for turn, values in means.items()}
        return {(name, turn): value - base[turn] for name, values in returns.items() for turn, value in values.items()}
    outcomes = [turns[0].reward or 0.0 for turns in members]
    mean = _base(outcomes, len(members), baseline)
    return {
        (turn.episode, turn.turn): discount ** (turn.turns - 1 - turn.turn) * (outcome - mean)
        for turns, outcome in zip(members, outcomes, strict=True)
        for turn in turns
    }


def _base(values: Sequence[float], members: int, baseline: float) -> float:
    """The mean, exactly their own value where all are the same: what cannot be told apart is not pushed."""
    if members == 1:
        return baseline
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


def _returns(turns: Sequence[RewardedTurn], discount: float) -> dict[int, float]:
    """G by turn, over the turns that are there."""
    returns: dict[int, float] = {}
    future, last_turn = turns[0].reward or 0.0, max(turn.turn for turn in turns)
    for turn in sorted(turns, key=lambda turn: -turn.turn):
        future = (turn.turn_reward or 0.0) + discount ** (last_turn - turn.turn) * future
        returns[turn.turn], last_turn = future, turn.turn
    return returns


def _turn(sample: Sample) -> RewardedTurn:
    assert sample.episode is not None
    return sample.episode


def spreads(samples: Sequence[Sample]) -> list[int | None]:
    """Reply tokens of each sample's episode; None of what is not a turn of one."""
    spreads: list[int | None] = [None] * len(samples)
    for members in group_indices(samples):
        if samples[members[0]].episode is not None:
            total = sum(len(samples[i].tokens.reply) for i in members)
            for i in members:
                spreads[i] = total
    return spreads


def units(samples: Sequence[Sample]) -> int:
    """How many of them weigh as one each: an episode's turns do together."""
    return len(group_indices(samples))


def group_indices(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of what weighs as one: an episode's turns, anything else by itself."""
    members: dict[str | int, list[int]] = {}
    for i, sample in enumerate(samples):
        members.setdefault(i if sample.episode is None else sample.episode.episode, []).append(i)
    return list(members.values())
