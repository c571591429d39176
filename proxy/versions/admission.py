"""The door between requests and the backend: open, or closed while a training run has the GPU or a server changes.

Owns who is inside, for how long others wait and how many may. Nobody waits without an end: after
`server.hold_s` a request is answered with 503. One that finds `server.hold_most` before it, or its key's share of
these, is answered so at once.
Not here: why it closes and when it opens again (gpu_sharing), what a client hears meanwhile (early_stream).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from config.sections import ServerSection
from proxy.core.errors import BackendDown
from proxy.core.sharing.waiting_line import Beat, WaitingLine

RETRY_AFTER_S: Final = 30  # what SDKs still heed; a run takes minutes

POLL_S: Final = 0.05


class Admission:
    def __init__(self, server: ServerSection) -> None:
        self._hold_s = server.hold_s
        self._inside = 0
        self._for_good = False  # it does not open again
        self._line = WaitingLine(server.hold_most)
        self.closed: str | None = None  # why, in half a sentence

    @property
    def waiting(self) -> int:
        return len(self._line)

    @contextlib.asynccontextmanager
    async def through(self, beat: Beat | None = None, *, wait: bool = True) -> AsyncIterator[None]:
        """Inside from here to the end of the block. `beat` is awaited every few seconds of waiting.

        Raises BackendDown where the door stays closed for too long, where too many wait already, or without `wait`.
        """
        await self.enter(beat, wait=wait)
        try:
            yield
        finally:
            self.leave()

    async def enter(self, beat: Beat | None = None, *, wait: bool = True) -> None:
        """Wait until the door is open, and hold it open until `leave`. Raises as `through`."""
        if self.closed is None:
            self._inside += 1
            return
        if not wait:
            raise self._refused("no version is changed meanwhile (`rlproxy pause` wakes it)")
        if self._for_good:
            raise self._closed_error()
        if (refusal := self._line.refusal()) is not None:
            waiting = "this key's share of those that wait" if refusal == "share" else f"{len(self._line)} requests"
            raise self._refused(f"{waiting} wait already (server.hold_most)")
        try:
            await self._line.wait(self.leave, beat=beat, within_s=self._hold_s)
        except TimeoutError:
            raise self._refused(f"this request has waited for {self._hold_s:g} s (server.hold_s)") from None

    def _refused(self, reason: str) -> BackendDown:
        message = f"{self.closed}, and {reason}; nothing was lost, ask again later."
        return BackendDown(message, retry_after=RETRY_AFTER_S)

    def close(self, reason: str) -> None:
        """Nobody else gets in; who is inside goes on."""
        self.closed = reason

    @contextlib.contextmanager
    def shut(self, reason: str) -> Iterator[None]:
        """Closed for a moment, inside this block, by somebody who is inside. Those who wait hear nothing: which version
        they will get is what they wait for. Whoever closes it meanwhile keeps it closed."""
        self.closed, self._line.quiet = reason, True
        try:
            yield
        finally:
            self._line.quiet = False
            if self.closed == reason:
                self.open()

    def open(self) -> None:
        """Those who wait go in, each key's in the order in which they came."""
        self.closed = None
        while len(self._line):
            self._inside += 1  # now: were it closed again before they run, they are inside
            self._line.let_in()

    def turn_away(self, reason: str) -> None:
        """Nobody gets in any more, and nobody waits any longer."""
        self.closed, self._for_good = reason, True
        self._line.turn_away(self._closed_error)

    def _closed_error(self) -> BackendDown:
        return BackendDown(f"{self.closed}; ask again in a moment.", retry_after=5)

    async def emptied(self, within_s: float, unless: Callable[[], bool]) -> bool:
        """Tell whether all who were inside have left within this time. Looks no further once `unless` holds."""
        end = time.monotonic() + within_s
        while self._inside and not unless() and time.monotonic() < end:
            await asyncio.sleep(POLL_S)
        return not self._inside

    def leave(self) -> None:
        self._inside -= 1
