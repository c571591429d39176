"""Answer while rlproxy starts: 503 with how far that is, for programs and for a browser.

Owns these answers. The sockets are taken before, and heard by the proxy itself afterwards (start_errors.Listening).
"""

from __future__ import annotations

import html
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from proxy.core.errors import BackendDown
from proxy.core.start_errors import STARTING, Listening

AGAIN_S: Final = 5  # Retry-After
PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="viewport" content="width=device-width"><title>rlproxy is starting</title>
<body style="font: 1rem system-ui; max-width: 40rem; margin: 4rem auto; padding: 0 1rem; color-scheme: light dark">
<h1>rlproxy is starting</h1><p>{}.</p><p>This page looks again by itself.</p></body></html>"""


@asynccontextmanager
async def answering(listening: Listening, state: Callable[[], str]) -> AsyncIterator[None]:
    """Answer all that comes in meanwhile. `state`: what the start waits for. Raises CannotStart."""

    async def answer(request: web.BaseRequest) -> web.Response:
        headers = {"retry-after": str(AGAIN_S), "cache-control": "no-store", "connection": "close"}
        if "text/html" in request.headers.get("accept", ""):
            page = PAGE.format(html.escape(state()))
            return web.Response(status=503, text=page, content_type="text/html", headers=headers)
        error = BackendDown(f"{STARTING}: {state()}; ask again in a moment.")
        return web.json_response(error.body(), status=503, headers=headers)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    try:
        await listening.begin(runner, lend=True)
        yield
    finally:
        await runner.cleanup()
