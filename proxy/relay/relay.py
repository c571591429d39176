"""The way of a captured request from agent to backend, in five stages: parse, command, version, admit, forward.

Owns their order. Each stage is a method that adds to the request's context what the next ones need. What happens from
the question on is an `Exchange`. Not here: how a body is read (request_body), the row of what is captured
(capture.request_row), routes that no dialect knows (passthrough).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from aiohttp import web

from proxy.access.keys import Scope
from proxy.access.pace import PacedStream
from proxy.access.security import HEAD, PRINCIPAL, RequestHead
from proxy.conversation.retries import Attempt, key_of
from proxy.core.agent_wrappers import NOBODY, agent_of
from proxy.core.errors import BadRequest, ProxyError, not_stored
from proxy.core.offload import LARGE, in_thread, off_loop, weight
from proxy.dialects import Dialect, ParsedRequest
from proxy.dialects.base import OutgoingRequest
from proxy.feedback.chat_command import ChatCommands, CommandContext
from proxy.relay.capture.request_row import RequestRow
from proxy.relay.capture.side_turns import SideTurns
from proxy.relay.context import HeadFacts, RequestContext, head_facts, new_id
from proxy.relay.early_stream import HeldStream
from proxy.relay.exchange import Exchange
from proxy.relay.lessons import members
from proxy.relay.model_servers import ModelServer, further_of
from proxy.relay.parts import RelayParts
from proxy.relay.previous_response import PreviousResponses, marked, unmarked
from proxy.relay.request_body import (
    body_facts,
    command_lines,
    hold_named,
    hold_parsed,
    hold_stored,
    plain_body,
    with_members,
)
from proxy.relay.request_end import CLIENT_GONE, note_end
from proxy.relay.unread_requests import unread_answer
from proxy.telemetry.request_trace import RequestTrace
from proxy.versions.arms import Arms, Assignment
from store.errors import StoreError
from store.line_records import COMMON
from store.records import PromptLesson, Requester

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_AT_ONCE: Final = contextlib.nullcontext()
_ONE_TRY: Final = contextlib.nullcontext((None, None))  # of a client that does not count its tries


class Relay:
    def __init__(self, parts: RelayParts, commands: ChatCommands) -> None:
        self.parts = parts
        self._commands = commands
        self._previous = PreviousResponses(parts.store, parts.redactor)
        self._retries = parts.services.retries
        self._side_turns = SideTurns(parts.store, parts.underway)
        self._heads: WeakKeyDictionary[RequestHead, HeadFacts] = WeakKeyDictionary()

    async def data(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        trace = RequestTrace(time.perf_counter())
        if self.parts.exporter is not None:
            self.parts.exporter.begin(trace, request.headers.get("traceparent"))
        self.parts.services.last_request = time.monotonic()
        status = CLIENT_GONE
        try:
            response = await self._stages(request, dialect, trace)
            status = response.status
        except (ProxyError, StoreError) as error:
            failed = _as_proxy_error(error)
            trace.error = type(failed).__name__
            response = failed.response(dialect.error(failed))
            status = response.status
        finally:
            note_end(self.parts, trace, dialect, status)
        return response

    async def _stages(self, request: web.Request, dialect: Dialect, trace: RequestTrace) -> web.StreamResponse:
        context = await self._parse(request, dialect, trace)
        # A command is no part of what is captured, and acts once also where nothing is.
        is_counted = context.digest is not None and (context.id is not None or context.commands.position is not None)
        session = context.identity.session
        tries = self._retries.attempt(request, context.digest, session) if is_counted else _ONE_TRY
        with tries as (attempt, previous_try):
            if context.commands.position is not None:
                return await self._command(context, attempt, previous_try)
            if attempt and previous_try and await self._retries.settle(attempt, previous_try, context.parsed.n):
                return await attempt.replay(request)
            context.attempt = attempt
            await self._version(context)
            response = await self._admit(context)
            if attempt is not None:
                attempt.keep(response)
            return response

    # 1: parse

    async def _parse(self, request: web.Request, dialect: Dialect, trace: RequestTrace) -> RequestContext:
        """Raises BadRequest, TooLarge, TooMany, Overloaded."""
        parts, head = self.parts, self._heads.get(request[HEAD]) or self._head_facts(request[HEAD])
        raw = await plain_body(request, head.coding, parts.settings.server.max_body_bytes)
        prefix = parts.recent.bodies.find_prefix(raw)
        await hold_parsed(request, raw, prefix)
        read = partial(
            body_facts, raw, parts.recent.bodies, prefix, dialect, request.headers, head.identity, is_side=head.side
        )
        is_large = prefix.weight >= LARGE  # also what was said before has to be walked through
        content, parsed, identity, agent, commands = await in_thread(read) if is_large else read()
        digest = (await off_loop(len(raw), key_of, request, raw)) if head.counts_tries else None
        scope = Scope.of(request[PRINCIPAL], identity.user, identity.people)
        user = scope.user or scope.principal.name
        if user != identity.user:
            identity = identity._replace(user=user)
        context = RequestContext(
            request=request,
            head=head,
            dialect=dialect,
            trace=trace,
            started=trace.started,
            content=content,
            as_sent=parsed,
            body=content.parsed,
            parsed=parsed,
            add={},
            weight=prefix.weight,
            agent=agent,
            identity=identity,
            scope=scope,
            requester=Requester(scope.principal.key, user),
            commands=commands,
            digest=digest,
            server=parts.own_server,
        )
        if dialect.goes_on and parsed.unreadable is None:
            await self._spell_out(context)
        if not (head.off or parsed.unreadable is not None or identity.session in parts.uncaptured.sessions):
            context.id = head.id or new_id()
        return context

    def _head_facts(self, head: RequestHead) -> HeadFacts:
        """Raises BadRequest."""
        self._heads[head] = facts = head_facts(head, self.parts.settings, self.parts.own_server)
        return facts

    async def _spell_out(self, context: RequestContext) -> None:
        """Put the answers into the request that it only names. They are bounded as what is sent, and in the same
        account. Raises BadRequest, TooMany, Overloaded, TooLarge."""
        dialect, parsed, scope = context.dialect, context.parsed, context.scope
        size, limit = len(context.content.raw), self.parts.settings.server.max_body_bytes
        hold = partial(hold_stored, context.request, size, limit=limit)
        add = await self._previous.spell_out(dialect, context.body, parsed.previous, scope, hold)
        if add:
            hold_named(context.request, size, add, limit)
        items = await self._previous.referred(dialect, context.body, scope, context.identity.session, hold)
        if items:
            parsed = await off_loop(context.weight, dialect.read, context.body, items)
        if add:
            context.add = add
            context.weight += sum(map(weight, add.values()))
            sent = parsed.messages
            context.body, parsed = await off_loop(context.weight, with_members, dialect, context.body, parsed, add)
            parsed = replace(parsed, messages=marked(parsed.messages, sent))
        if parsed is not context.parsed:
            context.parsed = parsed
            await off_loop(context.weight, _find_commands, context)

    # 2: command

    async def _command(
        self, context: RequestContext, attempt: Attempt | None, previous_try: Attempt | None
    ) -> web.StreamResponse:
        """Answer the `/rl` line that the conversation ends in: never sent to the model, never stored as a completion.
        Whoever names people speaks for them, and only those whom the settings list are admins."""
        scope, dialect, lines = context.scope, context.dialect, context.commands
        assert lines.position is not None
        admins = self.parts.settings.server.chat_admins
        unlisted = tuple(name for name in scope.names if name not in admins)
        model = context.parsed.model or self.parts.backend.served.model
        context.version = self.parts.live_version.parse_name(context.parsed.model)
        context.line = await self.parts.lines.of_request(
            context.version, context.scope.principal, context.request.headers, context.identity.user, context.agent
        )
        command = CommandContext(scope, context.identity, model, unlisted, context.agent, context.line)
        parsed = replace(
            context.parsed, previous=context.as_sent.previous, messages=lines.messages[: lines.position + 1]
        )

        async def act() -> str:
            messages = await self._previous.as_answered(parsed, scope)
            return await self._commands.answer(messages, command, is_bare=dialect.is_prompt)

        text = await self._retries.once(attempt, previous_try, act)
        self._side_turns.note_command(context.requester)
        return await self._answer(context, parsed, text)

    async def _answer(self, context: RequestContext, parsed: ParsedRequest, text: str) -> web.StreamResponse:
        """An answer of ours."""
        dialect, id = context.dialect, self._previous.local_id(context.dialect, context.as_sent)
        kind, pieces = dialect.answer(text, id=id, parsed=parsed, created=int(time.time()))
        response = PacedStream(headers={"content-type": kind, "x-accel-buffering": "no"})
        await response.prepare(context.request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    # 3: version

    async def _version(self, context: RequestContext) -> None:
        """Resolve the version that the request names, or that its episode has. Raises BadRequest for a request that
        no version can answer, Gone where the episode has ended."""
        if context.id is not None:
            if not _ID.fullmatch(context.id):
                raise BadRequest(
                    "`x-rl-completion-id` must be 1 to 128 letters, digits or `._:-`.", param="x-rl-completion-id"
                )
            self.parts.recent.bodies.remember(context.content)
        if context.add:
            context.parsed = replace(context.parsed, messages=unmarked(context.parsed.messages))
        if context.commands.for_model is not None and not context.commands.for_model:
            raise BadRequest("There is no message for the model, only `/rl` commands.", param="messages")
        context.version = name = self.parts.live_version.parse_name(context.parsed.model)
        if self.parts.further and (server := further_of(self.parts.further, name)) is not None:
            self._direct(context, server)
            return
        context.line = await self.parts.lines.of_request(
            context.version, context.scope.principal, context.request.headers, context.identity.user, context.agent
        )
        if context.id is not None and context.identity.session is not None:  # an episode is a captured session
            live = self.parts.live_version.version_of(name, context.line) if name.pinned is None else None
            assert context.requester.key is not None
            pin = await self.parts.episodes.pin(
                context.requester.key, context.identity.session, live, begins=context.head.identity.may_begin_episode,
                line=context.line,
            )  # fmt: skip
            context.is_episode = pin is not None
            context.pinned = None if live is None or pin is None else pin.version
            context.line = context.line if pin is None or name.pinned is not None else pin.line
        if context.id is not None and name.is_ours and name.pinned is None and not context.is_episode:
            context.assigned = _assignment(self.parts.arms, context)

    def _direct(self, context: RequestContext, server: ModelServer) -> None:
        """Have a further model answer: by no version, in the line of its key, and with none of its client's keys."""
        context.server = server
        context.head = head_facts(context.request[HEAD], self.parts.settings, server)
        context.line = context.scope.principal.line or COMMON

    # 4: admit

    async def _admit(self, context: RequestContext) -> web.StreamResponse:
        """Let the request in when it is its turn. A client that reads a stream is held with comments until then."""
        parts = self.parts
        if context.server.is_further:  # it neither rests while a run trains, nor changes its version
            with parts.throttle.answering():
                return await self._forward(context)
        may_wait = context.is_episode or parts.admission.closed is not None
        context.stream = stream = self._held_stream(context) if may_wait else None
        beat = stream.beat if stream else None
        try:
            arrival = time.perf_counter()
            async with parts.queue.turn(context.parsed.n, beat) if context.is_episode else _AT_ONCE:
                await parts.admission.enter(beat)
                parts.throttle.enter()
                try:
                    context.started += time.perf_counter() - arrival  # waiting is not overhead
                    return await self._forward(context)
                finally:
                    parts.throttle.leave()
                    parts.admission.leave()
        except (ProxyError, StoreError) as error:
            if stream is None or stream.response is None:
                raise
            return await stream.failed(_as_proxy_error(error))

    def _held_stream(self, context: RequestContext) -> HeldStream | None:
        """The stream by which a client is told to wait; None where its format has no comments."""
        if not context.parsed.stream or context.dialect.framing != "sse":
            return None
        promised = context.promised
        if promised is None:
            promised = self.parts.live_version.version_of(context.version, context.line)
        return HeldStream(context.request, context.dialect, context.attempt, context.id, promised)

    # 5: forward

    async def _forward(self, context: RequestContext) -> web.StreamResponse:
        """Ask the backend with the lease of a version, and leave the completion stored. Raises ProxyError."""
        parts, stream = self.parts, context.stream
        await context.server.backend.ready()
        promised = stream.promised if stream else None
        promised = context.promised if promised is None else promised
        if context.server.is_further:
            lease = context.server.lease()
        else:
            lease = await parts.live_version.acquire(context.version, promised, context.line)
        context.lease = lease
        try:
            outgoing = await self._outgoing(context)
            taught = await self._lessons(context) if parts.lessons is not None and context.pinned is None else ()
            sent = outgoing
            if taught:
                sent = await off_loop(context.weight, _taught, context.dialect, outgoing, taught)
                if sent is outgoing:  # no message to put them after
                    taught = tuple(lesson for lesson in taught if lesson.left_out)
            row = RequestRow(parts, self._side_turns, context, outgoing, taught)
            exchange = Exchange(parts, context, sent, row.make, taught)
            if outgoing.parsed.unreadable is not None:
                return await unread_answer(parts, context, outgoing, exchange)
            if context.id is not None:
                # Who comes while the disk is behind waits here, and takes no more memory than that.
                await parts.store.room()
                if context.head.id is not None:  # else the row is made while the backend is asked
                    await exchange.begin()
                if context.attempt is not None:
                    context.attempt.completion = context.id
            return await exchange.run()
        finally:
            lease.release()

    async def _outgoing(self, context: RequestContext) -> OutgoingRequest:
        """The request without its commands, going on from the answer that its client named."""
        body, parsed, add, for_model = context.body, context.parsed, context.add, context.commands.for_model
        if for_model is not None:
            changes = await off_loop(context.weight, context.dialect.keep, body, parsed, for_model)
            add = add | changes
            body, parsed = await off_loop(context.weight, with_members, context.dialect, body, parsed, changes)
        if parsed.previous != context.as_sent.previous:
            parsed = replace(parsed, previous=context.as_sent.previous)
        return OutgoingRequest(context.content.raw, add, body, parsed, context.content.items, context.weight)

    async def _lessons(self, context: RequestContext) -> tuple[PromptLesson, ...]:
        """The lessons that fit. None, unless the request is captured, and a header can still name them."""
        has_begun = context.stream is not None and context.stream.response is not None
        if self.parts.lessons is None or context.id is None or context.agent is NOBODY or has_begun:
            return ()
        return await self.parts.lessons.for_request(
            context.dialect, context.parsed, context.requester, context.lease.version, context.line
        )


def _as_proxy_error(error: ProxyError | StoreError) -> ProxyError:
    return error if isinstance(error, ProxyError) else not_stored("The store did not take it", error)


def _assignment(arms: Arms, context: RequestContext) -> Assignment | None:
    """The arm of its conversation in the running experiment."""
    if arms.experiment is None or arms.experiment.line != context.line:
        return None
    if (conversation := context.conversation()) is None:
        return None
    has_history = any(message.get("role") == "assistant" for message in context.parsed.messages)
    return arms.assign(conversation, has_history=has_history)


def _find_commands(context: RequestContext) -> None:
    """Look again for the agent and the commands: the request says now what it only named."""
    parsed = context.parsed
    typed = parsed.typed and not context.head.side
    context.agent = agent_of(context.request.headers, parsed.messages) if typed else NOBODY
    context.commands = command_lines(parsed.messages, context.agent)


def _taught(dialect: Dialect, outgoing: OutgoingRequest, taught: Sequence[PromptLesson]) -> OutgoingRequest:
    """The same request with these lessons in it. What is captured of it is what its client sent."""
    changes = members(dialect, outgoing.body, taught)
    if not changes:
        return outgoing
    body, parsed = with_members(dialect, outgoing.body, outgoing.parsed, changes)
    return replace(
        outgoing, add={**outgoing.add, **changes}, body=body, parsed=replace(parsed, previous=outgoing.parsed.previous)
    )
