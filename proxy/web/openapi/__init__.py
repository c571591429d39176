"""`GET /openapi.json`: the OpenAPI 3.1 document of all that other programs may use.

`requests`, `responses` and their like are the shapes of bodies, which `proxy.web.route_table` puts to its routes;
`document` makes the document of that table. Only the handler is here, because most proxies are never asked for the
document and all of them start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from proxy.web.error_middleware import Handler

if TYPE_CHECKING:
    from proxy.web.route import Route


def answering(operations: Callable[[], Sequence[Route]]) -> Handler:
    """Make the handler of the document, which is put together once, when it is first asked for."""

    @cache
    def encode() -> bytes:
        from proxy.web.openapi.document import document

        return orjson.dumps(document(operations()))

    async def get(request: web.Request) -> web.Response:
        return web.Response(body=await asyncio.to_thread(encode), content_type="application/json")

    return get
