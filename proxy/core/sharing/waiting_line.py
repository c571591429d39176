"""Requests that wait for their turn: each holder's in the order in which they came, the holders by turns.

Owns the order, how many may wait, and what a client hears meanwhile. One that goes away neither keeps its place nor
takes a turn. Not here: for what they wait (versions.admission, relay.episode_queue, core.offload).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from proxy.core.sharing.shares import HOLDER, Holder, Refusal, Shares

BEAT_S: Final = 3.0  # of waiting in silence; clients and proxies in between give up sooner or later

Beat = Callable[[], Awaitable[None]]


class _Waiter(NamedTuple):
    turn: asyncio.Future[None]
    size: int


class WaitingLine:
    def __init__(self, most: int) -> None:
        """`most`: how many may wait, of which no holder takes more than its share."""
        self._places = Shares(most)
        self._waiters: OrderedDict[Holder, deque[_Waiter]] = OrderedDict()  # the holder whose turn is next comes first
        self.quiet = False  # nothing is promised to those who wait

    def __len__(self) -> int:
        return self._places.in_use

    @property
    def of_this_holder(self) -> int:
        return self._places.held_by(HOLDER.get())

    def refusal(self) -> Refusal | None:
        """Tell why this request may not wait; None where it may."""
        return self._places.refusal(HOLDER.get())

    def holders(self) -> Iterator[Holder]:
        """Those who wait, the one whose turn is next first."""
        return iter(self._waiters)

    @property
    def next_size(self) -> int | None:
        """How much the first one needs; None where nobody waits."""
        return next(iter(self._waiters.values()))[0].size if self._waiters else None

    async def wait(
        self, leave: Callable[[], None], *, size: int = 1, beat: Beat | None = None, within_s: float | None = None
    ) -> None:
        """Return when it is this request's turn; whoever gave the turn has counted it. `beat` is awaited every few
        seconds. `leave` is called where the client goes away after the turn was given. The caller has asked `refusal`.

        Raises TimeoutError after `within_s`, and what `turn_away` was given.
        """
        holder, waiter = HOLDER.get(), _Waiter(asyncio.get_running_loop().create_future(), size)
        self._places.take(holder)
        self._waiters.setdefault(holder, deque()).append(waiter)
        try:
            async with asyncio.timeout(within_s):
                while not waiter.turn.done():
                    await asyncio.wait({waiter.turn}, timeout=None if beat is None else BEAT_S)
                    if beat is not None and not (self.quiet or waiter.turn.done()):
                        await beat()
        except BaseException as error:
            if not waiter.turn.done():
                self._remove(holder, waiter)
            elif waiter.turn.exception() is None:
                if isinstance(error, TimeoutError):
                    return  # let in at the last moment
                leave()
            raise
        waiter.turn.result()

    def let_in(self, holder: Holder | None = None) -> None:
        """Give the first one its turn, or the first one of this holder; then it is another holder's turn."""
        holder = next(iter(self._waiters)) if holder is None else holder
        waiter = self._waiters[holder][0]
        self._remove(holder, waiter)
        if holder in self._waiters:
            self._waiters.move_to_end(holder)
        waiter.turn.set_result(None)

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Nobody waits any longer: each gets an error of its own."""
        for holder, waiters in list(self._waiters.items()):
            for waiter in list(waiters):
                self._remove(holder, waiter)
                waiter.turn.set_exception(error())

    def _remove(self, holder: Holder, waiter: _Waiter) -> None:
        waiters = self._waiters[holder]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[holder]
        self._places.give_back(holder)
