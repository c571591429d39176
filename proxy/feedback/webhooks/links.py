"""`POST /rl/links`: whoever posts a message says which completion it shows.

Owns the wait for a completion that is still being stored while its message is posted, and who may link what. A link
decides whose rating a reaction is and of what. Not here: how a link is followed (`resolve`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from aiohttp import web
from typing_extensions import TypedDict

from proxy.access.keys import Scope
from proxy.access.security import principal_of
from proxy.core.errors import BadRequest, Forbidden, NotFound
from proxy.core.json_response import json_object
from proxy.core.wrapped_ids import unwrap_id
from proxy.dialects.identity import user_in
from proxy.feedback.webhooks.base import IN_MATRIX
from store.errors import LinkTaken, UnknownCompletion
from store.records import Link
from store.store import Store

WAIT_S: Final = 1.0
LOOK_S: Final = 0.05


class LinkedMessage(TypedDict):
    platform: str
    channel: str
    message_id: str
    completion_id: str
    person: str | None


class Links:
    def __init__(self, store: Store, on_first_link: Callable[[Link], None], *, is_matrix_on: bool) -> None:
        """`on_first_link` is called with the first link of a main turn's answer. `is_matrix_on`: a homeserver pushes
        what happens in OpenClaw's Matrix rooms, too."""
        self._store = store
        self._on_first_link = on_first_link
        self._is_matrix_on = is_matrix_on

    async def post(self, request: web.Request) -> web.Response:
        """Asked again by the same key, the message shows the new one. Raises NotFound where the key has no such
        completion, Forbidden where another key has linked the message."""
        body = await json_object(request)
        principal, user = principal_of(request), user_in(request.headers)
        new = Link(
            platform=_name(body, "platform"),
            channel=_name(body, "channel"),
            message_id=_name(body, "message_id"),
            completion_id=unwrap_id(_name(body, "completion_id")),
            person=_name(body, "person") if body.get("person") else None,
            key=principal.key,
        )
        if self._is_matrix_on and new.platform == "openclaw" and new.channel.startswith(IN_MATRIX):
            new = _by_homeserver(new)
        await self._linked(new, Scope(principal, user, () if user is None else (user,)))
        linked = LinkedMessage(
            platform=new.platform, channel=new.channel, message_id=new.message_id, completion_id=new.completion_id,
            person=new.person,
        )  # fmt: skip
        return web.json_response(linked, status=201)

    async def _linked(self, new: Link, scope: Scope) -> None:
        until = asyncio.get_running_loop().time() + WAIT_S
        while (requester := await self._store.reactions.requester_of(new.completion_id)) is None:
            if asyncio.get_running_loop().time() >= until:
                raise _unknown(new)
            await asyncio.sleep(LOOK_S)
        if not scope.shows(requester):
            raise _unknown(new)
        try:
            is_admin = scope.principal.role == "admin" and not scope.names
            if await self._store.reactions.link(new, whosever=is_admin):
                self._on_first_link(new)
        except UnknownCompletion:  # forgotten meanwhile
            raise _unknown(new) from None
        except LinkTaken as error:
            raise Forbidden(
                f"{error} Nothing was changed: link it by that key, or by one with the role admin.", param="message_id"
            ) from None


def _by_homeserver(link: Link) -> Link:
    """OpenClaw's Matrix room and person by the names that the homeserver's events have."""
    person = link.person.removeprefix(IN_MATRIX) if link.person else None
    return replace(link, platform="matrix", channel=link.channel.removeprefix(IN_MATRIX), person=person)


def _unknown(new: Link) -> NotFound:
    return NotFound(
        f"There is no completion {new.completion_id} of this key; nothing was linked. Link it by the key that asked "
        "for it, or by one with the role admin.",
        param="completion_id",
    )


def _name(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # Telegram's ids are numbers
    if not isinstance(value, str) or not 0 < len(value) <= 500:
        raise BadRequest(f"`{key}` must be text of 1 to 500 characters.", param=key)
    return value
