"""`/rl/keys`: made, listed, revoked. All of it is an admin's (security)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.access.keys import Keys, as_json
from proxy.access.security import actor_of, require_admin
from proxy.core.json_response import json_object, json_response
from proxy.versions.lines import Lines
from proxy.web.openapi.responses import KeysBody, NewKey

NO_STORE: Final = {"cache-control": "no-store"}


class KeyRoutes:
    def __init__(self, keys: Keys, lines: Lines) -> None:
        self._keys = keys
        self._lines = lines

    async def list(self, request: web.Request) -> web.Response:
        require_admin(request)
        return self._listing()

    def _listing(self) -> web.Response:
        body = KeysBody(data=self._keys.list(), needed=self._keys.needed, fixed=self._keys.fixed)
        return json_response(body, headers=NO_STORE)

    async def open(self, request: web.Request) -> web.Response:
        require_admin(request)
        await self._keys.open(actor_of(request))
        return self._listing()

    async def create(self, request: web.Request) -> web.Response:
        require_admin(request)
        body = await json_object(request)
        line = None if body.get("line") is None else self._lines.existing(str(body["line"]))
        name, role = str(body.get("name") or ""), body.get("role", "use")
        key, text = await self._keys.create(name, role, actor_of(request), line)
        return json_response(NewKey(**as_json(key), key=text), 201, headers=NO_STORE)

    async def revoke(self, request: web.Request) -> web.Response:
        require_admin(request)
        return json_response(
            as_json(await self._keys.revoke(request.match_info["key"], actor_of(request))), headers=NO_STORE
        )
