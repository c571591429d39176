"""`/rl/retrain`: the history of ratings once more, on another base. Planned, begun, looked at, stopped.

Owns its HTTP. Not here: what it takes and how it goes on (proxy.training.retraining).
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.core.errors import BadRequest, NotFound
from proxy.core.json_response import json_object, json_response
from proxy.core.wrapped_ids import unwrap_id
from proxy.training.retraining.retraining import RetrainBody, Retraining
from proxy.training.run_supervisor import RunSupervisor
from proxy.versions.lines import Lines
from store.line_records import COMMON
from store.store import Store

FLAGGED: Final = "flagged"  # in place of an id: all that the user's own check has flagged


class RetrainRoutes:
    def __init__(self, retraining: Retraining, supervisor: RunSupervisor, store: Store, lines: Lines) -> None:
        self._lines = lines
        self._retraining = retraining
        self._store = store
        self._supervisor = supervisor

    async def get(self, request: web.Request) -> web.Response:
        """The one under way, or the last one."""
        require_admin(request)
        return json_response(await self._report())

    async def post(self, request: web.Request) -> web.Response:
        """Begin one; with `dry_run` only say what it would take."""
        require_admin(request)
        body = await json_object(request, may_be_empty=True)
        weights, left_out, line = _weights(body), _left_out(body), self._lines.existing(_line(body))
        if FLAGGED in left_out:
            left_out = sorted({*left_out, *await self._store.flags.ids()} - {FLAGGED})
        if _flag(body, "dry_run"):
            return json_response(await self._retraining.plan(weights, left_out, line))
        await self._retraining.begin(weights, left_out, line, actor_of(request))
        return json_response(await self._report(), status=201)

    async def delete(self, request: web.Request) -> web.Response:
        """End it; its versions so far stay."""
        require_admin(request)
        await self._supervisor.stop_retrain(actor_of(request))
        return json_response(await self._report())

    async def _report(self) -> RetrainBody:
        if (report := await self._retraining.report()) is None:
            raise NotFound("There has been no retrain here; `rlproxy retrain --weights FOLDER` begins one.")
        return report


def _weights(body: dict[str, Any]) -> str | None:
    weights = body.get("weights")
    if weights is not None and not (isinstance(weights, str) and weights.strip()):
        raise BadRequest("`weights` must be a folder or a hub id. Nothing was begun.", param="weights")
    return weights


def _line(body: dict[str, Any]) -> str:
    line = body.get("line")
    if not isinstance(line, str | None):
        raise BadRequest("`line` must be the name of a line. Nothing was begun.", param="line")
    return line or COMMON


def _left_out(body: dict[str, Any]) -> list[str]:
    """Completions, each once."""
    ids = body.get("without", [])
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise BadRequest("`without` must be a list of ids of completions. Nothing was begun.", param="without")
    return sorted({unwrap_id(id) for id in ids})


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"`{name}` must be true or false. Nothing was begun.", param=name)
    return value
