"""Requests that wait for their turn, in the order in which they came.

Owns the order, what a client hears meanwhile, and that one which goes away neither keeps its place nor takes a turn.
Not here: for what they wait (versions.admission, relay.episode_queue).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

BEAT_S: Final = 3.0  # of waiting in silence; clients and proxies in between give up sooner or later

Beat = Callable[[], Awaitable[None]]


class _Waiter(NamedTuple):
    turn: asyncio.Future[None]
    size: int


class WaitingLine:
    def __init__(self) -> None:
        self._waiters: deque[_Waiter] = deque()
        self.quiet = False  # nothing is promised to those who wait

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def next_size(self) -> int | None:
        """How much the first one needs; None where nobody waits."""
        return self._waiters[0].size if self._waiters else None

    async def wait(
        self, leave: Callable[[], None], *, size: int = 1, beat: Beat | None = None, within_s: float | None = None
    ) -> None:
        """Return when it is this request's turn; whoever gave the turn has counted it. `beat` is awaited every few
        seconds. `leave` is called where the client goes away after the turn was given.

        Raises TimeoutError after `within_s`, and what `turn_away` was given.
        """
        waiter = _Waiter(asyncio.get_running_loop().create_future(), size)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(within_s):
                while not waiter.turn.done():
                    await asyncio.wait({waiter.turn}, timeout=None if beat is None else BEAT_S)
                    if beat is not None and not (self.quiet or waiter.turn.done()):
                        await beat()
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.turn.exception() is None:
                if isinstance(error, TimeoutError):
                    return  # let in at the last moment
                leave()
            raise
        waiter.turn.result()

    def let_in(self) -> None:
        """Give the first one its turn."""
        self._waiters.popleft().turn.set_result(None)

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Nobody waits any longer: each gets an error of its own."""
        while self._waiters:
            self._waiters.popleft().turn.set_exception(error())
