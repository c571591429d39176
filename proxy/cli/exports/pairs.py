"""Pairs of replies to one prompt, one liked better, as trainers of preferences (DPO) want them.

Owns which replies are a pair: as in a run of rlproxy's own (trainer/lessons/pairs.py). A correction is better than what
it corrects. Of all replies to one prompt the best goes with the worst, the next best with the next worst. A reply is in
one pair at most. The file is read twice. The first reading keeps 16 bytes and a number of each reply. So
the second knows which replies wait for another, and holds only those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from proxy.cli.exports.examples import Example, Message

WITHOUT_PAIR: Final = "without another reply to the same prompt that was rated otherwise"
SAME: Final = "in the same words as the reply of its pair"
CHANGED: Final = "rated or taken back meanwhile"

LeaveOut = Callable[[str], None]


class PreferencePair(NamedTuple):
    chosen: Message
    rejected: Message
    example: Example  # of the prompt and the tools


def rated_differently(examples: Iterable[Example]) -> dict[bytes, int]:
    """Prompts with replies of different ratings, and how many replies they have."""
    values: defaultdict[bytes, list[float]] = defaultdict(list)
    for example in examples:
        if example.correction is None:
            values[example.key].append(example.value)
    return {key: len(group) for key, group in values.items() if min(group) < max(group)}


def pairs(examples: Iterable[Example], groups: dict[bytes, int], leave_out: LeaveOut) -> Iterator[PreferencePair]:
    """`groups`: as `rated_differently` found them; a group is over when as many have come."""
    waiting: defaultdict[bytes, list[Example]] = defaultdict(list)
    for example in examples:
        if example.correction is not None:
            yield from _pair(example.correction, example.reply, example, leave_out)
        elif example.key not in groups:
            leave_out(WITHOUT_PAIR)
        else:
            waiting[example.key].append(example)
            if len(waiting[example.key]) == groups[example.key]:
                yield from _ranked(waiting.pop(example.key), leave_out)
    for _ in (example for group in waiting.values() for example in group):
        leave_out(CHANGED)


def _ranked(group: Sequence[Example], leave_out: LeaveOut) -> Iterator[PreferencePair]:
    ranked = sorted(group, key=lambda example: -example.value)  # of equals the older one first
    half = len(ranked) // 2
    for better, worse in zip(ranked[:half], reversed(ranked), strict=False):
        if better.value > worse.value:
            yield from _pair(better.reply, worse.reply, better, leave_out, replies=2)
        else:
            leave_out(WITHOUT_PAIR)
            leave_out(WITHOUT_PAIR)
    if len(ranked) % 2:
        leave_out(WITHOUT_PAIR)


def _pair(
    chosen: Message, rejected: Message, example: Example, leave_out: LeaveOut, *, replies: int = 1
) -> Iterator[PreferencePair]:
    if chosen == rejected:
        for _ in range(replies):
            leave_out(SAME)
    else:
        yield PreferencePair(chosen, rejected, example)
