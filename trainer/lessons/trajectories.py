"""Turns of episodes: what each is worth, compared with the other attempts at its task.

Owns the group's baseline, the backward discount, which groups teach, and the weight of an episode: each weighs the
same, however long it is. A = reward - group mean, not divided by the group's deviation (arXiv 2503.20783). Not here:
the loss (objective), how turns share tokens (policy.tree).
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
class Part:
    """Where a sample stands in its episode."""

    episode: str
    group: str | None  # None: compared with the running baseline
    reward: float | None  # of the outcome, -1 to 1
    turn: int  # from 0
    turns: int
    turn_reward: float | None = None  # of this very turn


@dataclass(frozen=True, slots=True)
class Groups:
    kept: int
    dropped: int  # all of whose episodes are worth the same
    alone: int  # episodes compared with the baseline


def part_of(line: Mapping[str, Any]) -> Part | None:
    """Raises BadLine."""
    given = line.get("episode")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise BadLine("`episode` is not an object")
    try:
        part = Part(
            str(given["id"]),
            None if given.get("group") is None else str(given["group"]),
            _reward(given.get("reward")),
            int(given["turn"]),
            int(given["turns"]),
            _reward(given.get("turn_reward")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadLine(f"`episode` is wrong: {error}") from None
    if not 0 <= part.turn < part.turns:
        raise BadLine(f"turn {part.turn} of {part.turns} cannot be")
    return part


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        raise ValueError(f"reward {value!r} is not a number from -1 to 1")
    return float(value)


def any_of(samples: Sequence[Sample]) -> bool:
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
    groups: dict[str, dict[str, list[Part]]] = {}
    for sample in samples:
        part = _part(sample)
        name = f"episode {part.episode}" if part.group is None else f"group {part.group}"
        groups.setdefault(name, {}).setdefault(part.episode, []).append(part)
    pushed: dict[tuple[str, int], float] = {}
    kept = dropped = alone = 0
    for members in groups.values():
        found = _of_group(list(members.values()), discount, baseline)
        pushed |= found
        if len(members) == 1:
            alone += 1
        elif any(found.values()):
            kept += 1
        else:
            dropped += 1
    parts = [_part(sample) for sample in samples]
    values = [max(-clip, min(clip, pushed[part.episode, part.turn])) for part in parts]
    return values, Groups(kept, dropped, alone)


def _of_group(members: Sequence[Sequence[Part]], discount: float, baseline: float) -> dict[tuple[str, int], float]:
    """A by episode and turn."""
    if any(part.turn_reward is not None for turns in members for part in turns):
        worth = {turns[0].episode: _returns(turns, discount) for turns in members}
        means: dict[int, list[float]] = {}
        for values in worth.values():
            for turn, value in values.items():
                means.setdefault(turn, []).append(value)
        base = {turn: _base(values, len(members), baseline) for turn, values in means.items()}
        return {(name, turn): value - base[turn] for name, values in worth.items() for turn, value in values.items()}
    outcomes = [turns[0].reward or 0.0 for turns in members]
    middle = _base(outcomes, len(members), baseline)
    return {
        (part.episode, part.turn): discount ** (part.turns - 1 - part.turn) * (outcome - middle)
        for turns, outcome in zip(members, outcomes, strict=True)
        for part in turns
    }


def _base(values: Sequence[float], members: int, baseline: float) -> float:
    """The mean, exactly their own value where all are the same: what cannot be told apart is not pushed."""
    if members == 1:
        return baseline
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


def _returns(turns: Sequence[Part], discount: float) -> dict[int, float]:
    """G by turn, over the turns that are there."""
    found: dict[int, float] = {}
    later, at = turns[0].reward or 0.0, max(part.turn for part in turns)
    for part in sorted(turns, key=lambda part: -part.turn):
        later = (part.turn_reward or 0.0) + discount ** (at - part.turn) * later
        found[part.turn], at = later, part.turn
    return found


def _part(sample: Sample) -> Part:
    assert sample.episode is not None
    return sample.episode


def spreads(samples: Sequence[Sample]) -> list[int | None]:
    """Reply tokens of each sample's episode; None of what is not a turn of one."""
    found: list[int | None] = [None] * len(samples)
    for members in together(samples):
        if samples[members[0]].episode is not None:
            total = sum(len(samples[i].tokens.reply) for i in members)
            for i in members:
                found[i] = total
    return found


def units(samples: Sequence[Sample]) -> int:
    """How many of them weigh as one each: an episode's turns do together."""
    return len(together(samples))


def together(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of what weighs as one: an episode's turns, anything else by itself."""
    found: dict[str | int, list[int]] = {}
    for i, sample in enumerate(samples):
        found.setdefault(i if sample.episode is None else sample.episode.episode, []).append(i)
    return list(found.values())
