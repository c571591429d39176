"""Going out of service: whoever balances between relays sees it, and takes this one out before it stops listening.

Owns the state and what it does to answers. Not here: when it begins, and how long it lasts (proxy.server).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web


class Draining:
    def __init__(self) -> None:
        self.has_begun = False

    def begin(self) -> None:
        self.has_begun = True

    async def close_connection(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`. The client's next request comes over a new connection, so to another relay."""
        if self.has_begun and response.status != 101:
            response.force_close()
            response.headers["connection"] = "close"


DRAINING: Final = web.AppKey("draining", Draining)
