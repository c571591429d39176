"""Ollama's own lists before a backend that is not Ollama: `/api/version`, `/api/tags`, `/api/ps`, `/api/show`.

Owns what `ollama run`, `list`, `show` and `ps`, and editors that speak to Ollama, ask before their first message. The
names are those of `GET /v1/models`. What such a server does not tell (sizes, templates, quantisation) is left empty.
Source: Ollama's `api/types.go` of August 2026. Not here: the lists of Ollama itself (ollama_lists).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from proxy.access.bodies import BODY
from proxy.core.json_edit import loads
from proxy.core.json_response import json_response
from proxy.core.upstream import upstream_path
from proxy.relay.anthropic_models import context_window
from proxy.relay.models import Models, is_missing
from proxy.relay.parts import RelayParts

VERSION: Final = "0.34.1"  # whose API is spoken here; some editors refuse old ones
FOREVER: Final = "9999-12-31T23:59:59Z"
_CAN: Final = ("completion", "tools")  # what chat completions have; the server may still refuse a request with tools
_LISTED: Final = ("modified_at", "capabilities")  # members of `/api/tags` that `/api/ps` lacks
_UNKNOWN: Final = "unknown"  # an architecture


class OllamaRoutes:
    def __init__(
        self,
        parts: RelayParts,
        models: Models,
        passthrough: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> None:
        self._parts = parts
        self._models = models
        self._passthrough = passthrough

    async def passed(self, request: web.Request) -> web.StreamResponse:
        """Whatever passes through to the backend, and these routes where it has none of them."""
        method = "GET" if request.method == "HEAD" else request.method
        match method, upstream_path(request).partition("?")[0]:
            case "GET", "/api/version":
                answer = self._version
            case "GET", "/api/tags":
                answer = self._tags
            case "GET", "/api/ps":
                answer = self._running
            case "POST", "/api/show":
                answer = self._show
            case _:
                return await self._models.passed(request)
        if self._parts.formats.native("ollama"):
            response = await self._passthrough(request)
            if not is_missing(response):
                return response
        return await answer(request)

    async def _version(self, request: web.Request) -> web.Response:
        return json_response({"version": VERSION})

    async def _tags(self, request: web.Request) -> web.Response:
        return json_response({"models": [listed_tag(entry) for entry in await self._models.listed(request)]})

    async def _running(self, request: web.Request) -> web.Response:
        """The model that is served without being asked for by name: such a server holds it."""
        loaded, model = {"expires_at": FOREVER, "size_vram": 0}, self._parts.backend.served.model
        listed = await self._models.listed(request)
        running = [listed_tag(entry) | loaded for entry in listed if entry.get("id") == model]
        return json_response({"models": [{k: v for k, v in tag.items() if k not in _LISTED} for tag in running]})

    async def _show(self, request: web.Request) -> web.Response:
        if BODY not in request:  # it came in pieces, and only what passes through may
            return json_response({"error": "this request needs a content-length"}, status=411)
        try:
            body = loads(request[BODY])
            name = str(body.get("model") or body.get("name") or "")
        except (ValueError, AttributeError):
            return json_response({"error": "the body is not a JSON object"}, status=400)
        names = (name, name.removesuffix(":latest"))
        entry = next((entry for entry in await self._models.listed(request) if entry.get("id") in names), None)
        if entry is None:
            return json_response({"error": f"model '{name}' not found"}, status=404)
        return json_response(description_of(entry))


def description_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a model list as `/api/show` has it."""
    tag = listed_tag(entry)
    about = {key: tag[key] for key in ("details", "modified_at", "capabilities")}
    info: dict[str, Any] = {"general.architecture": _UNKNOWN}
    if (window := context_window(entry)) is not None:
        info[f"{_UNKNOWN}.context_length"] = window
    return {"template": "", "parameters": "", "model_info": info, **about}


def listed_tag(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a model list as `/api/tags` has it."""
    name = str(entry.get("id"))
    created = entry.get("created")
    modified = datetime.fromtimestamp(created if isinstance(created, int) and 0 < created < 1 << 32 else 0, UTC)
    details = {"parent_model": str(entry.get("parent") or ""), "format": "", "family": "", "families": []}
    return {
        "name": name,
        "model": name,
        "modified_at": modified.isoformat().replace("+00:00", "Z"),
        "size": 0,
        "digest": hashlib.sha256(name.encode()).hexdigest(),  # clients cut it to twelve characters
        "details": {**details, "parameter_size": "", "quantization_level": ""},
        "capabilities": list(_CAN),
    }
