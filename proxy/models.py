"""`GET /v1/models`: the backend's list, with the versions that can be asked for by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from proxy.backends.base import Backend
from proxy.door import Door
from proxy.swap import Swap
from store.store import Store


class Models:
    def __init__(self, store: Store, backend: Backend, swap: Swap, door: Door) -> None:
        self._store = store
        self._backend = backend
        self._swap = swap
        self._door = door

    async def list(self, request: web.Request) -> web.Response:
        async with self._door.through():
            await self._backend.ready()
            listed = await self._backend.models()
        model = self._swap.model
        theirs = [m for m in listed if not str(m.get("id", "")).startswith(f"{model}@")]
        ours = await self.ours()
        return web.Response(
            body=orjson.dumps({"object": "list", "data": [*theirs, *ours]}), content_type="application/json"
        )

    async def ours(self) -> Sequence[dict[str, Any]]:
        model, adapters = self._swap.model, await self._store.adapters()
        base = [_entry(f"{model}@base", model, 0)] if self._backend.capabilities.adapters else []
        return base + [_entry(self._swap.name(a.version), model, int(a.created_at)) for a in adapters if not a.gone]


def _entry(name: str, parent: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "rlproxy", "parent": parent}
