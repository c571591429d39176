"""Memory of the conversations that run now: the newest first, bounded in number, in bytes and in time.

Owns these bounds, for all that is worked out once a conversation; and how much of two turns is the same. In memory
only; who has it forgotten is recent. Not here: what is remembered (incremental_json, history_cache).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

MOST: Final = 16  # conversations that are remembered
BYTES: Final = 16 * 1024 * 1024  # of their requests, all together
KEPT_S: Final = 600.0  # who has said nothing for longer is worked out again

T = TypeVar("T")


class _Turn(NamedTuple, Generic[T]):
    used_at: float
    size: int
    value: T


class TurnCache(Generic[T]):
    """May be read from any thread."""

    def __init__(self) -> None:
        self._turns: tuple[_Turn[T], ...] = ()  # never changed, only exchanged

    def __iter__(self) -> Iterator[T]:
        return (turn.value for turn in self._turns)

    def remember(self, value: T, size: int, instead_of: T | None) -> None:
        """In place of the turn that it goes on with. `size`: bytes of its request; very large ones are not kept."""
        if size > BYTES // 4:
            return
        now = time.monotonic()
        turns, room = [_Turn(now, size, value)], BYTES - size
        for turn in self._turns:
            room -= turn.size
            if turn.value is not instead_of and room >= 0 and len(turns) < MOST and now - turn.used_at < KEPT_S:
                turns.append(turn)
        self._turns = tuple(turns)

    def clear(self) -> None:
        self._turns = ()


def common(most: int, same: Callable[[int, int], bool]) -> int:
    """How many of the first `most` are the same. `same(start, end)`: whether all from one to the other are, where those
    before are."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low
