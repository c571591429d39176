"""`POST /rl/links`: whoever posts a message says which completion it shows.

Owns the wait for a completion that is still being stored while its message is posted. Not here: how a link is followed
(`finding`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from proxy.errors import BadRequest, NotFound
from proxy.wire import loads
from store.errors import UnknownCompletion
from store.records import Link
from store.store import Store

WAIT_S: Final = 1.0
LOOK_S: Final = 0.05


class Links:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def post(self, request: web.Request) -> web.Response:
        """Asked again, the message shows the new one."""
        try:
            body = loads(await request.read())
        except ValueError as error:
            raise BadRequest(f"The body is not valid JSON ({error}).") from None
        if not isinstance(body, dict):
            raise BadRequest("The body must be a JSON object.")
        new = Link(
            platform=_name(body, "platform"),
            channel=_name(body, "channel"),
            message_id=_name(body, "message_id"),
            completion_id=_name(body, "completion_id"),
            person=_name(body, "person") if body.get("person") else None,
        )
        await self._linked(new)
        said = {key: getattr(new, key) for key in ("platform", "channel", "message_id", "completion_id", "person")}
        return web.json_response(said, status=201)

    async def _linked(self, new: Link) -> None:
        """Raises NotFound where the completion does not come."""
        until = asyncio.get_running_loop().time() + WAIT_S
        while True:
            try:
                return await self._store.link(new)
            except UnknownCompletion:
                if asyncio.get_running_loop().time() >= until:
                    raise NotFound(
                        f"There is no completion {new.completion_id}; nothing was linked.", param="completion_id"
                    ) from None
            await asyncio.sleep(LOOK_S)


def _name(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # Telegram's ids are numbers
    if not isinstance(value, str) or not 0 < len(value) <= 500:
        raise BadRequest(f"`{key}` must be text of 1 to 500 characters.", param=key)
    return value
