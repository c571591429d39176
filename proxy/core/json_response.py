"""Answers in JSON, as all of rlproxy's own routes give them."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from aiohttp import web


def json_response(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json", headers=headers)
