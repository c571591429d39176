"""Room in memory for an answer: a plain body, an event that does not end, and what is made of them.

Owns the two bounds, `server.max_body_bytes` for one answer and `server.max_held_bytes` for all, and what is said where
they are met. An answer that is longer than the largest request can never be sent back, so nothing of it is kept.
Its bytes go on to the client. Not here: what is folded from a stream (answer_reader).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cached_property
from typing import Final

from aiohttp import web

from config.sections import ServerSection
from proxy.core.backend_answer import Answer
from proxy.core.errors import BackendBroke
from proxy.core.offload import LARGE, LIGHT, whole_weight
from proxy.core.sharing.shares import SMALL, Room
from proxy.core.sse import EventSplitter
from proxy.core.upstream import BodyTooLong, read_whole
from proxy.relay.request_body import COPIES, room_for

SENT: Final = 3  # copies of an event that is sent on as it is: here, on its way, and in the connection
REASON: Final = (
    "the answer is longer than rlproxy keeps (server.max_body_bytes), or than there was memory for "
    "(server.max_held_bytes)"
)


class AnswerRoom:
    """Each room is made where it is first asked for: most answers need one or two of them."""

    def __init__(self, request: web.Request, server: ServerSection) -> None:
        self._request = request
        self._server = server

    @cached_property
    def record(self) -> Room:
        """For what is folded from a stream."""
        return room_for(self._request, self._server.max_body_bytes, COPIES)

    @cached_property
    def backlog(self) -> Room:
        """For what another format holds to its end."""
        return room_for(self._request, self._server.max_body_bytes)

    @cached_property
    def _body(self) -> Room:
        return room_for(self._request, self._server.max_body_bytes, COPIES)

    @cached_property
    def _event(self) -> Room:
        return room_for(self._request, self._server.max_body_bytes, SENT)

    @cached_property
    def _objects(self) -> Room:
        return room_for(self._request, self._server.max_held_bytes)

    async def body(self, upstream: Answer) -> bytes | None:
        """All of a plain body. None where there is no room for it, or for what is made of it: then it can be read
        again."""
        try:
            body = await read_whole(upstream, self._body)
        except BodyTooLong:
            return None
        if len(body) >= LIGHT and not self._objects.fits(whole_weight(body)):
            upstream.give_back(body)
            return None
        return body

    async def pieces(self, upstream: Answer) -> AsyncIterator[bytes]:
        """An answer as it comes. The first piece is all that was held of it: once it is sent, its room is free."""
        async for piece in upstream.pieces():
            yield piece
            self.end()

    def fits(self, splitter: EventSplitter, piece: bytes) -> bool:
        """Tell whether there is room for these whole events, and for the one that has not come to its end."""
        if splitter.waiting > SMALL and not self._event.fits(splitter.waiting + len(piece)):
            return False
        return len(piece) < LARGE or self._objects.fits(whole_weight(piece))

    def end(self) -> None:
        """Nothing of the answer is in memory any more."""
        for room in vars(self).values():
            if isinstance(room, Room):
                room.end()

    @staticmethod
    def error() -> BackendBroke:
        """The error of an answer that cannot be said in another format without having all of it."""
        return BackendBroke(f"{REASON[0].upper()}{REASON[1:]}, so it was broken off. Ask for a shorter one.")
