"""`GET /openapi.json`: the OpenAPI 3.1 document of all that other programs may use.

`operations` is the table of the routes, `asked` and `answered` are the shapes of their bodies, `document` puts them
together. Nothing here answers a request but the one for the document: tests hold the handlers against it. Only the
route is here, because most proxies are never asked for the document and all of them start.
"""

from __future__ import annotations

import asyncio

from aiohttp import web


def route() -> web.RouteDef:
    async def get(request: web.Request) -> web.Response:
        return web.Response(body=await asyncio.to_thread(_encode), content_type="application/json")

    return web.get("/openapi.json", get)


def _encode() -> bytes:
    from proxy.web.openapi.document import encode  # a hundred models: 0.1 s of every start

    return encode()
