"""Bodies in JSON, as all of rlproxy's own routes take and give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from proxy.core.errors import BadRequest
from proxy.core.json_edit import loads
from proxy.core.offload import off_loop


def json_response(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json", headers=headers)


def parse_json(raw: bytes) -> Any:
    """The body of a request. Raises BadRequest."""
    try:
        return loads(raw)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON ({error}); nothing was changed.") from None


def as_object(body: Any) -> dict[str, Any]:
    """Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object; nothing was changed.")
    return body


async def json_object(request: web.Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The body of a short request; no body is as good as {} where it `may_be_empty`. Raises BadRequest."""
    raw = await request.read()
    return {} if may_be_empty and not raw.strip() else as_object(await off_loop(len(raw), parse_json, raw))
