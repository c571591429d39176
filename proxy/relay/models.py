"""`GET /v1/models` and `GET /v1/models/NAME`: the backend's list, with the versions that can be asked for by name.

Owns that whatever is in the list can be looked at by its name, also where the backend has no such route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from proxy.backends.base import Backend
from proxy.core.json_response import json_response
from proxy.core.upstream import upstream_path
from proxy.versions.admission import Door
from proxy.versions.live_version import Swap
from store.store import Store

_ONE: Final = "/v1/models/"


class Models:
    def __init__(
        self,
        store: Store,
        backend: Backend,
        swap: Swap,
        door: Door,
        passthrough: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> None:
        self._store = store
        self._backend = backend
        self._swap = swap
        self._door = door
        self._passthrough = passthrough

    async def list(self, request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": await self._listed()})

    async def passed(self, request: web.Request) -> web.StreamResponse:
        """Whatever passes through to the backend, and one model of the list. Of others the backend says what it says:
        it may know a model by a name that it does not list."""
        path = upstream_path(request).partition("?")[0]
        if request.method == "GET" and path.startswith(_ONE):
            asked = unquote(path.removeprefix(_ONE))
            if (found := next((one for one in await self._listed() if one.get("id") == asked), None)) is not None:
                return json_response(found)
        return await self._passthrough(request)

    async def _listed(self) -> Sequence[dict[str, Any]]:
        async with self._door.through():
            await self._backend.ready()
            listed = await self._backend.models()
        theirs = [m for m in listed if not str(m.get("id", "")).startswith(f"{self._swap.model}@")]
        return [*theirs, *await self.ours()]

    async def ours(self) -> Sequence[dict[str, Any]]:
        model, adapters = self._swap.model, await self._store.versions.all()
        base = [_entry(f"{model}@base", model, 0)] if self._backend.capabilities.adapters else []
        return base + [_entry(self._swap.name(a.version), model, int(a.created_at)) for a in adapters if not a.gone]


def _entry(name: str, parent: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "rlproxy", "parent": parent}
