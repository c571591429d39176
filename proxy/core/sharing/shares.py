"""A bounded number of something, shared so that no holder takes what others need.

Owns the rule: a holder that has some gets more only while it then holds at most `FACTOR` times what is left. One holder
alone gets three quarters of all, two get three sevenths each, and something is left for the next one. No holder needs
to be known in advance. Not here: what is shared, as places, bytes and threads, who waits for it (waiting_line).
"""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final, Literal, Protocol

FACTOR: Final = 3
Holder = Hashable
# The key and the kind of the request that runs; work that belongs to no request is rlproxy's own.
HOLDER: Final[ContextVar[Holder]] = ContextVar("holder", default="rlproxy")

SMALL: Final = 1 << 16  # bytes that are in no account: all places together hold little of them
STEP: Final = 1 << 18  # bytes that are taken at once where it is not known how many there will be

Refusal = Literal["full", "share"]


class Shares:
    def __init__(self, most: int, factor: int = FACTOR) -> None:
        self.most = most
        self.in_use = 0
        self._factor = factor
        self._held_by: dict[Holder, int] = {}

    def held_by(self, holder: Holder) -> int:
        return self._held_by.get(holder, 0)

    def refusal(self, holder: Holder, amount: int = 1, reserve: int = 0) -> Refusal | None:
        """Tell why this holder may not take so much: all is held, or its own share is. `reserve`: what it may take
        beyond `most`."""
        free = self.most + reserve - self.in_use
        if amount > free:
            return "full"
        share = self._held_by.get(holder, 0)
        return "share" if share and share + amount > self._factor * (free - amount) else None

    def take(self, holder: Holder, amount: int = 1, reserve: int = 0) -> Refusal | None:
        """Take it, unless it is refused."""
        refusal = self.refusal(holder, amount, reserve)
        if refusal is None:
            self.in_use += amount
            self._held_by[holder] = self._held_by.get(holder, 0) + amount
        return refusal

    def give_back(self, holder: Holder, amount: int = 1) -> None:
        self.in_use -= amount
        remaining = self._held_by[holder] - amount
        if remaining:
            self._held_by[holder] = remaining
        else:
            del self._held_by[holder]


class Account(Protocol):
    """Something that bytes are taken from."""

    def take(self, amount: int) -> Refusal | None: ...

    def give_back(self, amount: int) -> None: ...


class Room:
    """Room for bytes that become more: few are free, more are taken from an account, and it never has over `most`."""

    __slots__ = ("_account", "_amount", "_copies", "_most", "_size")

    def __init__(self, most: int, account: Account | None = None, copies: int = 1) -> None:
        """`copies`: how many there will be of each byte while it is worked on."""
        self._most = most
        self._account = account
        self._copies = copies
        self._size = min(SMALL, most)
        self._amount = 0

    def fits(self, size: int) -> bool:
        """Tell whether so many bytes have room, all together."""
        step = STEP * self._copies
        while self._size < size <= self._most and (self._account is None or self._account.take(step) is None):
            self._size += STEP
            self._amount += step
        return size <= self._size

    def shrink(self, size: int) -> None:
        """So many bytes are left in it; the room of the others is given back."""
        steps = min((self._size - size) // STEP, self._amount // (STEP * self._copies))
        if self._account is not None and steps > 0:
            self._size -= steps * STEP
            self._amount -= steps * STEP * self._copies
            self._account.give_back(steps * STEP * self._copies)

    def end(self) -> None:
        """Nothing is in it any more."""
        self._most = 0
        if self._account is not None:
            self._account.give_back(self._amount)
        self._amount = 0
