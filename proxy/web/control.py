"""The control routes under `/rl/`, health and metrics.

Owns HTTP for what a person or the CLI asks of rlproxy itself. What is done is done elsewhere: admin acts, swap, store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import orjson
import structlog
from aiohttp import web

from proxy.access.draining import DRAINING
from proxy.access.pace import PacedStream
from proxy.access.security import actor_of, principal_of, require_admin
from proxy.core import sse
from proxy.core.errors import BackendDown, BadRequest, NotFound
from proxy.core.json_response import json_response
from proxy.core.tasks import SharedCall
from proxy.feedback.bodies import short
from proxy.feedback.ratings import Feedback
from proxy.relay.request_body import COPIES, hold
from proxy.signals.bodies import SignalBody
from proxy.training.admin_acts import OF_A_LINE
from proxy.training.training import Training
from proxy.versions.services import Services
from proxy.versions.what_changed import changes_body, pair_body, shown_pairs
from proxy.web.error_middleware import Handler
from proxy.web.lines.query import line_of, only_line
from proxy.web.openapi.responses import (
    AdapterBody,
    AdaptersBody,
    AuditBody,
    AuditLine,
    CompletionBody,
    CompletionsBody,
    Ok,
    RunsBody,
    WholeAdapter,
    WholeCompletion,
)
from proxy.web.query import flag, number, turn
from proxy.web.run_detail import account
from proxy.web.status import StatusReport, reachable, run_json
from store.captured.completions import PageQuery
from store.copies import export
from store.copies.export import Filter
from store.copies.read_only import ReadOnlyStore
from store.errors import StoreError
from store.line_records import COMMON, Pointer
from store.records import BASE, Adapter, Completion
from store.store import Store

log = structlog.get_logger()

BEAT_S = 15.0  # a comment line, so that proxies in between keep the stream open
PAGE = 50
STOPPING_AGAIN_S = 5


class Control:
    def __init__(
        self,
        services: Services,
        training: Training,
        status: StatusReport,
        feedback: Feedback,
        is_still_allowed: Callable[[web.Request], bool],
    ) -> None:
        """`is_still_allowed`: whether a request would be let in now as it was."""
        self._store = services.store
        self._events = services.events
        self._metrics = services.metrics
        self._metrics.live.set_function(lambda: self._live_version.live)
        self._admission = services.admission
        self._looking = SharedCall(lambda: reachable(services.backend))  # of all that ask, with no key
        self._live_version = training.live_version
        self._lines = training.lines
        self._acts = training.acts
        self._status = status
        self._feedback = feedback
        self._is_still_allowed = is_still_allowed

    # Reading

    async def healthz(self, request: web.Request) -> web.Response:
        return web.json_response(Ok(ok=True))

    async def readyz(self, request: web.Request) -> web.Response:
        if request.app[DRAINING].has_begun:
            raise BackendDown(
                "rlproxy is stopping and takes nobody new; ask another one.", retry_after=STOPPING_AGAIN_S
            )
        reason = f"{self._admission.closed}; requests wait." if self._admission.closed else await self._looking.result()
        if reason is not None:
            raise BackendDown(reason)
        return web.json_response(Ok(ok=True))

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"content-type": "text/plain; version=0.0.4"})

    async def status(self, request: web.Request) -> web.Response:
        status = await self._status.full(line_of(request, self._lines))
        status["lines"] = self._lines.names(principal_of(request))
        return json_response(status)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Events as they happen; `Last-Event-ID` goes on from there. Ends once the listener's key is revoked."""
        last = request.headers.get("last-event-id") or request.query.get("after")
        if last is not None and not (last.isdecimal() and len(last) < 19):
            raise BadRequest("`Last-Event-ID` must be the number of an event.", param="last-event-id")
        response = PacedStream(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(request)
        listening = self._events.listen(int(last) if last is not None else None)
        next_one = asyncio.ensure_future(anext(listening))
        try:
            while True:
                finished_tasks, _ = await asyncio.wait({next_one}, timeout=BEAT_S)
                if not self._is_still_allowed(request):
                    return response
                if not finished_tasks:
                    await response.write(b": \n\n")
                    continue
                try:
                    event = next_one.result()
                except StopAsyncIteration:  # we stop
                    return response
                head = f"id: {event.id}\nevent: {event.kind}\n".encode()
                await response.write(head + sse.event(orjson.dumps(event.data)))
                next_one = asyncio.ensure_future(anext(listening))
        finally:
            next_one.cancel()
            await asyncio.wait({next_one})
            await listening.aclose()

    async def completions(self, request: web.Request) -> web.Response:
        """Newest first; `before` is the `seq` to go on from."""
        query = PageQuery(
            limit=number(request, "limit", PAGE, 1, 1000),
            before_seq=number(request, "before", None, 1, 2**62),
            session=request.query.get("session"),
            unrated=flag(request, "unrated"),
            version=number(request, "version", None, 0, 2**31),
            turn=turn(request),
            line=only_line(request, self._lines),
        )
        hold(request, COPIES * await self._store.completions.page_size(**query))
        rows = await self._store.completions.page(**query)
        return json_response(CompletionsBody(data=[completion_json(c) for c in rows]))

    async def completion(self, request: web.Request) -> web.Response:
        id = await self._feedback.named_in(request)
        hold(request, COPIES * await self._store.sizes.whole([id], None))
        completion = await self._store.completions.get(id)
        if completion is None or principal_of(request).line not in (None, completion.new.line):
            raise NotFound("There is no such completion.", param="id")
        prompt = [{"role": m.role, **orjson.loads(m.body)} for m in completion.new.prompt]
        signals = [
            cast(SignalBody, export.signal(signal)) for signal in await self._store.signals.of(completion.new.id)
        ]
        return json_response(WholeCompletion(**completion_json(completion), prompt=prompt, signals=signals))

    async def adapters(self, request: web.Request) -> web.Response:
        line = only_line(request, self._lines)
        pointers = await self._store.lines.pointers()
        data = [adapter_json(a, pointers[a.line]) for a in await self._store.versions.all() if line in (None, a.line)]
        return json_response(AdaptersBody(data=data, live=pointers[line or COMMON].live))

    async def adapter(self, request: web.Request) -> web.Response:
        version = request.match_info["version"].removeprefix("v")
        number = int(version) if version.isdecimal() and len(version) < 10 else BASE
        adapter = await self._store.versions.get(number)
        if adapter is None:
            raise NotFound(f"There is no version {version}.", param="version")
        pointer = await self._store.versions.pointer(adapter.line)
        return json_response(await whole_adapter(self._store, adapter, pointer))

    async def runs(self, request: web.Request) -> web.Response:
        runs = await self._store.runs.recent(limit=number(request, "limit", PAGE, 1, 1000))
        return json_response(RunsBody(data=[run_json(r) for r in runs]))

    async def run(self, request: web.Request) -> web.Response:
        run_id = request.match_info["id"]
        run = await self._store.runs.get(int(run_id)) if run_id.isdecimal() and len(run_id) < 19 else None
        if run is None:
            raise NotFound(f"There is no run {run_id}.", param="id")
        return json_response(await account(self._store, run))

    async def audit(self, request: web.Request) -> web.Response:
        """Newest first; `before` is the `seq` to go on from."""
        limit, before_seq = number(request, "limit", PAGE, 1, 1000), number(request, "before", None, 1, 2**62)
        lines = await self._store.meta.audit_log(limit, before_seq)
        return json_response(AuditBody(data=[_audit_json(line) for line in lines]))

    async def export(self, request: web.Request) -> web.StreamResponse:
        only = Filter(
            rated=flag(request, "rated"),
            rollouts=flag(request, "rollouts"),
            session=request.query.get("session"),
            user=request.query.get("user"),
            version=number(request, "version", None, 0, 2**31),
            line=request.query.get("line"),
            turn=turn(request),
            since=number(request, "since", None, 0, 2**40),
            until=number(request, "until", None, 0, 2**40),
        )
        filters = {name: value for name, value in asdict(only).items() if value not in (None, False)}
        try:
            await self._store.meta.audit(actor_of(request), "export", filters)
        except StoreError as error:  # what can still be read of a damaged file is to be had
            log.error("the audit log has no line of this export", error=str(error))
        response = PacedStream(headers={"content-type": "application/x-ndjson"})
        await response.prepare(request)
        async for row in self._store.transfer.export(only):
            await response.write(orjson.dumps(row) + b"\n")
        await response.write_eof()
        return response

    # Acting

    def act(self, act: str) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            require_admin(request)
            version = (
                _version_to_promote(request)
                if act == "promote"
                else BASE
                if act == "rollback" and flag(request, "base")
                else None
            )
            line = request.query.get("line")
            if line is not None and act in OF_A_LINE:
                self._lines.existing(line)
            tune = act == "train" and flag(request, "tune")
            result = await self._acts.do(act, actor_of(request), version, tune=tune, line=line)
            return json_response(result.body, status=result.status)

        return handle


def _audit_json(line: dict[str, Any]) -> AuditLine:
    return {
        "seq": line["seq"],
        "created_at": line["at"],
        "actor": line["actor"],
        "act": line["act"],
        "detail": line["detail"],
    }


def _version_to_promote(request: web.Request) -> int:
    version = request.match_info["version"].removeprefix("v")
    if version != "base" and not version.isdecimal():
        raise BadRequest("Promote a version: `v3`, `3` or `base`.", param="version")
    return BASE if version == "base" else int(version[:10])


def completion_json(c: Completion) -> CompletionBody:
    end = c.end
    return {
        "seq": c.seq,
        "id": c.new.id,
        "status": c.status,
        "created_at": c.new.created_at,
        "model": c.new.model,
        "version": c.new.version,
        "line": c.new.line,
        "session": c.new.session,
        "user": c.new.user,
        "turn": c.new.turn,
        "turn_rule": c.new.turn_rule,
        "dialect": c.new.dialect,
        "translated": end.translated if end else None,
        "text": end.text if end else None,
        "finish_reason": end.finish_reason if end else None,
        "usage": end.usage if end else None,
        "exact": end.exact if end else None,
        "inexact_reason": end.inexact_reason if end else None,
        "untrainable": c.new.untrainable,
        "images": c.new.images,
        "redacted": list(c.new.redacted),
        "error": end.error if end else None,
        "ratings": [short(rating) for rating in c.ratings],
    }


async def whole_adapter(store: Store | ReadOnlyStore, adapter: Adapter, pointer: Pointer) -> WholeAdapter:
    pairs = [pair_body(pair) for pair in await shown_pairs(store, adapter.version)]
    return WholeAdapter(**adapter_json(adapter, pointer), pairs=pairs)


def adapter_json(a: Adapter, pointer: Pointer) -> AdapterBody:
    return {
        "version": a.version,
        "line": a.line,
        "parent": a.parent,
        "run": a.run_id,
        "model": a.model,
        "path": a.path,
        "created_at": a.created_at,
        "live": a.version == pointer.live,
        "previous": a.version == pointer.previous,
        "withdrawn": a.withdrawn,
        "metrics": a.manifest.get("metrics"),
        "gate": a.manifest.get("gate"),
        "changes": changes_body(a),
    }
