"""The beginning of a stream whose request waits: headers, and comments that keep the connection alive.

Owns what a client is told before the backend has been asked: the completion's id and the version that will answer.
Both are promises, and kept. Only where the format has comments; others wait in silence. Not here: the waiting
(admission), the answer itself (exchange).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from proxy.access.pace import PacedStream
from proxy.conversation.retries import Attempt
from proxy.core.errors import ProxyError
from proxy.core.version_names import label
from proxy.dialects import Dialect

KEEPALIVE: Final = b": keepalive\n\n"


class HeldStream:
    def __init__(
        self, request: web.Request, dialect: Dialect, attempt: Attempt | None, id: str | None, version: int | None
    ) -> None:
        self._request, self._dialect, self._attempt = request, dialect, attempt
        self._id, self._version = id, version
        self.response: web.StreamResponse | None = None  # once it has begun

    @property
    def promised(self) -> int | None:
        """The version that must answer; None where nothing has been said yet."""
        return None if self.response is None else self._version

    async def beat(self) -> None:
        if self.response is None:
            headers = CIMultiDict({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
            headers["x-rl-adapter"], headers["x-accel-buffering"] = label(self._version), "no"
            if self._id is not None:
                headers["x-rl-completion-id"] = self._id
            stream = PacedStream if self._attempt is None else self._attempt.stream
            self.response = stream(status=200, headers=headers)
            await self.response.prepare(self._request)
        await self.response.write(KEEPALIVE)

    async def failed(self, error: ProxyError) -> web.StreamResponse:
        """The status has been sent: what went wrong is an event."""
        assert self.response is not None
        await self.response.write(self._dialect.error_event(error))
        await self.response.write_eof()
        return self.response
