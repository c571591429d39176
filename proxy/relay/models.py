"""`GET /v1/models` and `GET /v1/models/NAME`: the backend's list, with the versions that can be asked for by name.

Owns that whatever is in the list can be looked at by its name, also where the backend has no such route. A client of
Anthropic's, which names its version, reads the same in Anthropic's form (anthropic_models).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from proxy.access.keys import Principal
from proxy.access.security import principal_of
from proxy.access.unknown_route import MISSING
from proxy.core.errors import NotFound, ProxyError
from proxy.core.http_message import NoHttp
from proxy.core.json_edit import loads
from proxy.core.json_response import json_response
from proxy.core.upstream import read_whole, upstream_path
from proxy.dialects import MESSAGES
from proxy.relay.anthropic_models import ANTHROPIC, anthropic_model, anthropic_page
from proxy.relay.parts import RelayParts
from store.line_records import COMMON

_LIST: Final = "/v1/models"
_BY_NAME: Final = f"{_LIST}/"


class Models:
    def __init__(self, parts: RelayParts, passthrough: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        self._parts = parts
        self._passthrough = passthrough
        self._is_foreign = parts.backend.capabilities.is_foreign

    async def list(self, request: web.Request) -> web.StreamResponse:
        """A list of somebody else's models is theirs alone, and a client's own key opens it."""
        if self._is_foreign and not self._parts.further:
            return await self._passthrough(request)
        listed = await self.listed(request)
        if ANTHROPIC in request.headers:
            return json_response(anthropic_page(listed, request.query))
        return json_response({"object": "list", "data": listed})

    async def passed(self, request: web.Request) -> web.StreamResponse:
        """Whatever passes through to the backend, and one model of the list. Of others the backend says what it says:
        it may know a model by a name that it does not list."""
        path = upstream_path(request).partition("?")[0]
        if request.method != "GET" or not path.startswith(_BY_NAME):
            return await self._passthrough(request)
        name = unquote(path.removeprefix(_BY_NAME))
        if self._is_foreign and name not in self._parts.services.further:
            response = await self._passthrough(request)
            if not is_missing(response):
                return response
            return await self._entry_of(name, request) or response
        answer = await self._entry_of(name, request)
        if answer is None and ANTHROPIC in request.headers:
            error = NotFound(f"The model {name!r} is not in the list of this backend; GET /v1/models has it.")
            return error.response(MESSAGES.error(error))
        return answer or await self._passthrough(request)

    async def _entry_of(self, name: str, request: web.Request) -> web.Response | None:
        entry = next((entry for entry in await self.listed(request) if entry.get("id") == name), None)
        if entry is not None and ANTHROPIC in request.headers:
            entry = anthropic_model(entry)
        return None if entry is None else json_response(entry)

    async def listed(self, request: web.Request) -> Sequence[dict[str, Any]]:
        """The models that this client can ask for. Raises BackendDown, BackendBroke."""
        backend = self._parts.backend
        async with self._parts.admission.through():
            await backend.ready()
            if self._is_foreign:
                return [*await self._listed_for(request), *self.further()]
            models = await backend.models()
        theirs = [m for m in models if not str(m.get("id", "")).startswith(f"{self._parts.live_version.model}@")]
        return [*theirs, *await self.ours(principal_of(request)), *self.further()]

    def further(self) -> Sequence[dict[str, Any]]:
        """Models of `[models.NAME]`, by these names."""
        names = self._parts.services.further
        return [{"id": name, "object": "model", "created": 0, "owned_by": "rlproxy"} for name in names]

    async def _listed_for(self, request: web.Request) -> Sequence[dict[str, Any]]:
        """Somebody else's list by the key of this client; empty where it tells none."""
        parts = self._parts
        assert parts.connections is not None
        headers = parts.request_headers(request)
        headers["accept-encoding"] = "identity"
        with contextlib.suppress(ProxyError, NoHttp, OSError, ValueError, KeyError, TypeError):
            answer = await parts.connections.ask("GET", parts.backend.url, _LIST, headers, None, unpack=True)
            body = await read_whole(answer)
            return [entry for entry in loads(body)["data"] if isinstance(entry, dict)] if answer.status == 200 else []
        return []

    async def ours(self, principal: Principal) -> Sequence[dict[str, Any]]:
        """The base, the lines and the versions that this key may ask for."""
        model, adapters = self._parts.live_version.model, await self._parts.store.versions.all()
        names = self._parts.lines.names(principal)
        own_lines = names if self._parts.lines.has_several else []
        lines = [_entry(f"{model}@{line}", model, 0) for line in own_lines if line != COMMON]
        adapters = [adapter for adapter in adapters if principal.line in (None, adapter.line)]
        base = [_entry(f"{model}@base", model, 0)] if self._parts.backend.capabilities.adapters else []
        name = self._parts.live_version.name
        return base + lines + [_entry(name(a.version), model, int(a.created_at)) for a in adapters if not a.is_deleted]


def is_missing(response: web.StreamResponse) -> bool:
    """Tell whether nothing was sent yet, as the backend has no such route."""
    return not response.prepared and response.status in MISSING


def _entry(name: str, parent: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "rlproxy", "parent": parent}
