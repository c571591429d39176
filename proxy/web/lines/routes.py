"""`/rl/lines`: listed, made, changed, retired, brought back.

Owns their HTTP. Which request a line answers and what a server needs for it is proxy.versions.lines'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.access.security import actor_of, principal_of, require_admin
from proxy.core.errors import BadRequest
from proxy.core.json_response import json_object, json_response
from proxy.training.preconditions import Preconditions
from proxy.versions.lines import Lines
from proxy.versions.live_version import LiveVersion
from proxy.web.lines.bodies import LineBody, LinesBody
from store.line_records import COMMON, LineCounts, Pointer, StoredLine
from store.records import BASE, Adapter
from store.store import Store


class LineRoutes:
    def __init__(self, store: Store, lines: Lines, live_version: LiveVersion, preconditions: Preconditions) -> None:
        self._store = store
        self._lines = lines
        self._live_version = live_version
        self._preconditions = preconditions

    async def listing(self, request: web.Request) -> web.Response:
        """The common line first, retired ones last; a key of one line sees that one."""
        principal = principal_of(request)
        visible = [body for body in await self.bodies() if principal.line in (None, body["name"])]
        return json_response(LinesBody(data=visible))

    async def create(self, request: web.Request) -> web.Response:
        require_admin(request)
        body = await json_object(request)
        _only(body, {"name", "from", "users", "agents"})
        name, origin = body.get("name"), body.get("from", COMMON)
        if not isinstance(name, str) or not isinstance(origin, str):
            raise BadRequest("`name` and `from` must be texts. Nothing was made.", param="name")
        users, agents = _names(body, "users") or (), _names(body, "agents") or ()
        line = await self._lines.create(name, origin, users, agents, actor_of(request))
        return json_response(await self._body(line.name), 201)

    async def change(self, request: web.Request) -> web.Response:
        require_admin(request)
        name, body = request.match_info["line"], await json_object(request)
        _only(body, {"users", "agents"})
        await self._lines.change(name, _names(body, "users"), _names(body, "agents"), actor_of(request))
        return json_response(await self._body(name))

    async def retire(self, request: web.Request) -> web.Response:
        require_admin(request)
        await self._lines.retire(request.match_info["line"], actor_of(request))
        return json_response(await self._body(request.match_info["line"]))

    async def restore(self, request: web.Request) -> web.Response:
        require_admin(request)
        await self._lines.restore(request.match_info["line"], actor_of(request))
        return json_response(await self._body(request.match_info["line"]))

    async def _body(self, name: str) -> LineBody:
        return next(body for body in await self.bodies() if body["name"] == name)

    async def bodies(self) -> Sequence[LineBody]:
        pointers, counts = await self._store.lines.pointers(), await self._store.lines.counts()
        adapters = {adapter.version: adapter for adapter in await self._store.versions.all()}
        of_common = LineCounts(versions=sum(adapter.line == COMMON for adapter in adapters.values()))
        live = [line for line in self._lines.all if line.retired_at is None]
        retired = [line for line in self._lines.all if line.retired_at is not None]
        rows: list[tuple[str, StoredLine | None]] = [(COMMON, None), *((line.name, line) for line in (*live, *retired))]
        return [
            await self._row(name, line, pointers[name], of_common if line is None else counts.get(name), adapters)
            for name, line in rows
        ]

    async def _row(
        self,
        name: str,
        line: StoredLine | None,
        pointer: Pointer,
        counts: LineCounts | None,
        adapters: Mapping[int, Adapter],
    ) -> LineBody:
        is_live = name in self._live_version.lines
        counts = counts or LineCounts()
        model = self._live_version.model
        adapter = adapters.get(pointer.live)
        return {
            "name": name,
            "model": model if line is None else f"{model}@{name}",
            "live": pointer.live,
            "previous": pointer.previous,
            "live_since": pointer.changed_at or None,
            "live_because": pointer.reason,
            "origin": BASE if line is None else line.origin,
            "created_at": None if line is None else line.created_at,
            "retired_at": None if line is None else line.retired_at,
            "users": [] if line is None else list(line.users),
            "agents": [] if line is None else list(line.agents),
            "fresh": (await self._preconditions.fresh(line=name)).total if is_live else 0,
            "needed": (await self._preconditions.ratings_threshold(name))[0] if is_live else 0,
            "completions": None if line is None else counts.completions,
            "ratings": None if line is None else counts.ratings,
            "versions": counts.versions,
            "adapter_bytes": 0 if adapter is None or adapter.is_deleted else _size(Path(adapter.path)),
        }


def _size(folder: Path) -> int:
    try:
        return (folder / "adapter_model.safetensors").stat().st_size
    except OSError:
        return 0


def _only(body: Mapping[str, Any], members: set[str]) -> None:
    """Raises BadRequest for a member that nobody reads."""
    if unknown := sorted(body.keys() - members):
        raise BadRequest(f"`{unknown[0]}` is not a member of this request. Nothing was changed.", param=unknown[0])


def _names(body: Mapping[str, Any], member: str) -> list[str] | None:
    names = body.get(member)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest(f"`{member}` must be a list of names. Nothing was changed.", param=member)
    return names
