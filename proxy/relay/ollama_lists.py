"""Ollama's own lists through rlproxy: `/api/tags`, `/api/ps`, `/api/show`, by the names clients use.

Owns that these agree with `GET /v1/models`. A version is `MODEL@vN` in all of them and can be asked for by that name.
The tag that it has at Ollama is not shown. Everything else passes through as it is. Not here: which names there are
(live_version, store), how Ollama is asked (backends.ollama).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web

from proxy.access.bodies import BODY
from proxy.access.keys import Principal
from proxy.access.security import principal_of
from proxy.backends.ollama import Ollama
from proxy.core.json_edit import loads
from proxy.core.json_response import json_response
from proxy.core.upstream import upstream_path
from proxy.relay.ollama_routes import description_of, listed_tag
from proxy.relay.parts import RelayParts
from store.line_records import COMMON
from store.records import BASE, Adapter


class OllamaLists:
    def __init__(
        self,
        parts: RelayParts,
        fallback: Callable[[web.Request], Awaitable[web.StreamResponse]],
        passthrough: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> None:
        assert isinstance(parts.backend, Ollama)
        self._store = parts.store
        self._further = parts.services.further
        self._backend = parts.backend
        self._live_version = parts.live_version
        self._lines = parts.lines
        self._admission = parts.admission
        self._fallback = fallback
        self._passthrough = passthrough

    async def passed(self, request: web.Request) -> web.StreamResponse:
        """Whatever passes through to Ollama."""
        path = upstream_path(request)
        if (request.method, path) not in (("GET", "/api/tags"), ("GET", "/api/ps"), ("POST", "/api/show")):
            return await self._fallback(request)
        if path == "/api/show":
            return await self._show(request)
        async with self._admission.through():
            await self._backend.ready()
            listed = await self._backend.listed(path)
        list_models = self._running if path == "/api/ps" else self._tags
        return json_response({"models": await list_models(listed, principal_of(request))})

    async def _names(self, principal: Principal) -> dict[str, Adapter | None]:
        """By the name that a client uses: every version that this key can ask for, and the base."""
        model, adapters = self._live_version.model, {a.version: a for a in await self._store.versions.all()}
        remaining = {number: adapter for number, adapter in adapters.items() if not adapter.is_deleted}
        lines = [line for line in self._lines.names(principal) if line != COMMON]
        of_lines = {f"{model}@{line}": remaining.get(self._live_version.live_of(line)) for line in lines}
        versions = {
            self._live_version.name(number): adapter
            for number, adapter in remaining.items()
            if principal.line in (None, adapter.line)
        }
        return {f"{model}@base": None, **of_lines, **versions}

    async def _tags(self, listed: list[tuple[str, dict[str, Any]]], principal: Principal) -> list[dict[str, Any]]:
        """A version that Ollama does not hold at the moment is made when it is asked for, so it is listed too."""
        by_name = dict(listed)
        entries = [entry for tag, entry in listed if not self._backend.is_version(tag)]
        entries += [listed_tag({"id": name}) for name in self._further]
        if (base := by_name.get(self._live_version.model)) is None:
            return entries
        for name, adapter in (await self._names(principal)).items():
            model = base if adapter is None else by_name.get(self._backend.tag(name)) or _unmade(base, adapter)
            entries.append({**model, "name": name, "model": name})
        return entries

    async def _running(self, listed: list[tuple[str, dict[str, Any]]], principal: Principal) -> list[dict[str, Any]]:
        """Models in memory, another home's versions by their tags: they take up room. A key of a line sees its own."""
        names = await self._names(principal)
        ours = {self._backend.tag(name): name for name, adapter in names.items() if adapter is not None}
        if principal.line is not None:
            listed = [(tag, entry) for tag, entry in listed if tag in ours or not self._backend.is_version(tag)]
        return [entry | ({"name": ours[tag], "model": ours[tag]} if tag in ours else {}) for tag, entry in listed]

    async def _show(self, request: web.Request) -> web.StreamResponse:
        """A version has its model's template and parameters, so that it is the model which is shown."""
        request[BODY] = await request.read()
        try:
            body = loads(request[BODY])
        except ValueError:
            body = None
        model = str(body.get("model") or body.get("name")) if isinstance(body, dict) else ""
        model, principal = model.removesuffix(":latest"), principal_of(request)
        if principal.line is not None and self._backend.is_version(model):
            return json_response({"error": f"model '{model}' not found"}, status=404)  # it may be another line's
        if model in self._further:
            return json_response(description_of({"id": model}))
        if not model.startswith(f"{self._live_version.model}@"):
            return await self._passthrough(request)
        if model not in await self._names(principal):
            return json_response({"error": f"model '{model}' not found"}, status=404)
        async with self._admission.through():
            await self._backend.ready()
            status, answer = await self._backend.show({**body, "model": self._live_version.name(BASE)})
        return web.Response(body=answer, status=status, content_type="application/json")


def _unmade(base: dict[str, Any], adapter: Adapter) -> dict[str, Any]:
    """The base's entry with a digest of the version's own: Ollama's clients cut it to twelve characters."""
    files = orjson.dumps(adapter.manifest.get("files"), option=orjson.OPT_SORT_KEYS)
    moment = datetime.fromtimestamp(adapter.created_at, UTC).isoformat()
    return {**base, "digest": hashlib.sha256(files).hexdigest(), "modified_at": moment}
