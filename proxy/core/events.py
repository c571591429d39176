"""Events for whoever listens: a ring of numbered events for `/rl/events`.

Owns order and resumption (`Last-Event-ID`). Not the history: that is the store's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Any, NamedTuple

RING_SIZE = 1000  # events a listener may have missed; more is read from the store
SOON_S = 0.25  # in which many of a kind are told as one


class ServerEvent(NamedTuple):
    id: int
    kind: str
    data: dict[str, Any]


class Events:
    def __init__(self) -> None:
        self._ring: deque[ServerEvent] = deque(maxlen=RING_SIZE)
        self._next = 1
        self._wake: asyncio.Event = asyncio.Event()
        self._noted: dict[str, int] = {}
        self._ended = False

    def note(self, kind: str) -> None:
        """Frequent events are told soon, with how often: a hundred answers a second must not be as many events."""
        if kind not in self._noted:
            asyncio.get_running_loop().call_later(SOON_S, self._tell, kind)
        self._noted[kind] = self._noted.get(kind, 0) + 1

    def _tell(self, kind: str) -> None:
        self.emit(kind, count=self._noted.pop(kind))

    def emit(self, kind: str, **data: Any) -> None:
        self._ring.append(ServerEvent(self._next, kind, {"at": time.time(), **data}))
        self._next += 1
        self._wake.set()
        self._wake = asyncio.Event()

    def end(self) -> None:
        """Nobody waits for more: a stop does not wait for who listens."""
        self._ended = True
        self._wake.set()

    async def listen(self, last_id: int | None = None) -> AsyncGenerator[ServerEvent, None]:
        """Events after number `last_id` (None: from now on), until `end`."""
        newest_id = self._next - 1 if last_id is None else last_id
        if newest_id >= self._next:  # from before a restart: every event is new to this listener
            newest_id = 0
        while True:
            wake = self._wake
            # The ring has the newest of them without a gap: those not seen are its last ones.
            fresh = list(islice(self._ring, max(0, len(self._ring) - (self._next - 1 - newest_id)), None))
            for event in fresh:
                newest_id = event.id
                yield event
            if not fresh:
                if self._ended:
                    return
                await wake.wait()
