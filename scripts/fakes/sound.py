"""The fake backend on a good day: whatever it is asked, what goes wrong is not its fault.

It refuses what it does not understand with 400, as vLLM's own checks do, so that a 5xx can only be rlproxy's.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from scripts.fakes.backend import FakeBackend

ODD = (web.RequestPayloadError, KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


class SoundBackend(FakeBackend):
    def __init__(self, *, native: bool) -> None:
        super().__init__()
        if native:
            self.speaks = {"chat", "completions", "responses", "messages", "ollama", "ollama-generate"}

    async def listen(self, app: web.Application, port: int = 0, host: str = "127.0.0.1") -> None:
        app.middlewares.append(self._refusing)
        await super().listen(app, port, host)

    @web.middleware
    async def _refusing(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            if "content-encoding" in request.headers:
                error.force_close()
            raise
        except ODD as error:
            if request.writer.output_size:
                raise  # a second head in the middle of a stream is no HTTP
            response = web.json_response({"error": {"message": f"that is odd: {error!r}"[:300]}}, status=400)
        finally:
            for records in (self.requests, self.compared, self.headers, self.asked, self.unloaded):
                records.clear()
        if "content-encoding" in request.headers and not response.prepared:
            response.force_close()  # after a body that it cannot unpack, aiohttp closes, and does not say so
        return response
