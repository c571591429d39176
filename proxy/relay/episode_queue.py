"""Requests of episodes, of which only so many are at the backend at once; those of people pass by.

A program opens hundreds of episodes together. At the backend all their requests would stand before a person's next
one. Those that wait here go by turns of their keys, each key's in the order in which they came, and leave with their
client. Not here: which request is an episode's (feedback.episodes), waiting for the backend itself
(versions.admission).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Final

from pydantic import Field
from typing_extensions import TypedDict

from config.settings import Settings
from proxy.core.errors import BackendDown, ProxyError, TooMany
from proxy.core.sharing.shares import Refusal
from proxy.core.sharing.waiting_line import Beat, WaitingLine

SHARE: Final = 0.75  # of what the backend works on at once, and of `server.max_requests`: the rest is for people
RETRY_AFTER_S: Final = 5


class EpisodeRequests(TypedDict):
    at_once: Annotated[int, Field(description="The most that are at the backend: backend.episodes_at_once.")]
    at_backend: int
    waiting: int


class EpisodeQueue:
    def __init__(self, settings: Settings, works_on: int) -> None:
        """`works_on`: how many answers the backend works on at once."""
        if settings.train.share_gpu:  # while a run has the GPU, those that are let in here stand at the door
            works_on = min(works_on, settings.server.hold_most)
        self._at_once = settings.backend.episodes_at_once or max(1, int(SHARE * works_on))
        self._line = WaitingLine(int(SHARE * settings.server.max_requests))
        self._at_backend = 0  # choices that were asked for
        self._closed = False

    def state(self) -> EpisodeRequests:
        return {"at_once": self._at_once, "at_backend": self._at_backend, "waiting": len(self._line)}

    @contextlib.asynccontextmanager
    async def turn(self, choices: int, beat: Beat | None = None) -> AsyncIterator[None]:
        """At the backend from here to the end of the block. `beat` is awaited every few seconds of waiting.

        Raises TooMany where too many wait already, and BackendDown where rlproxy stops.
        """
        size = min(choices, self._at_once)

        def leave() -> None:
            self._at_backend -= size
            self._let_in()

        if self._closed:
            raise _stopping()
        if len(self._line) or self._at_backend + size > self._at_once:
            if (refusal := self._line.refusal()) is not None:
                raise self._refused(refusal)
            await self._line.wait(leave, size=size, beat=beat)
        else:
            self._at_backend += size
        try:
            yield
        finally:
            leave()

    def _refused(self, refusal: Refusal) -> TooMany:
        several = f"{len(self._line)} requests of episodes wait already"
        if refusal == "share":
            several = f"{self._line.of_this_holder} requests of this key's episodes wait already, which is its share"
        return TooMany(
            f"{several} (three quarters of server.max_requests may wait), and {self._at_backend} are at the backend "
            "(backend.episodes_at_once); nothing was lost, ask again later.",
            retry_after=RETRY_AFTER_S,
        )

    def _let_in(self) -> None:
        while not self._closed and (size := self._line.next_size) and self._at_backend + size <= self._at_once:
            self._at_backend += size
            self._line.let_in()

    def stopping(self) -> None:
        """Nobody waits any longer; what is at the backend ends by itself."""
        self._closed = True
        self._line.turn_away(_stopping)


def _stopping() -> ProxyError:
    return BackendDown("rlproxy is stopping; ask again in a moment.", retry_after=5)
