"""The way of a request from agent to backend: which route, whose request, a command or a question, which version.

Owns what happens before a request is sent: limits, parsing, speaker, commands out of the history, the lease, the row.
What happens from there on is an `Exchange`. Not here: routes that no dialect knows (passthrough).
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog
from aiohttp import web

from proxy.access.keys import Scope
from proxy.access.pace import PacedStream
from proxy.access.security import HEAD, PRINCIPAL, RequestHead
from proxy.conversation.conversations import command_at, without_commands
from proxy.conversation.history_cache import History, HistoryLookup
from proxy.conversation.redaction import WORTH_A_THREAD, places
from proxy.conversation.retries import Retries, key_of
from proxy.conversation.secret_shapes import LONGEST
from proxy.conversation.turns import turn_of
from proxy.conversation.typed_words import marked_errors, typed_in
from proxy.conversation.user_text import SHOWN, last_words, may_be_commands, words
from proxy.core.agent_wrappers import NOBODY, Agent, agent_of, as_typed
from proxy.core.errors import BadRequest, ProxyError, StorageFailed
from proxy.core.json_edit import dumps, loads
from proxy.core.offload import LARGE, in_thread, off_loop, weight
from proxy.dialects import Dialect, ParsedRequest
from proxy.dialects.base import OutgoingRequest
from proxy.dialects.identity import RequestIdentity
from proxy.feedback.chat_command import ChatCommands, CommandContext
from proxy.relay.context import (
    MOST,
    HeadFacts,
    RequestContext,
    body_facts,
    head_facts,
    hold_named,
    hold_parsed,
    new_id,
    plain_body,
    too_many,
)
from proxy.relay.early_stream import HeldStream
from proxy.relay.exchange import Exchange
from proxy.relay.lessons import members
from proxy.relay.parts import RelayParts
from proxy.relay.previous_response import PreviousResponses, marked, unmarked
from proxy.relay.side_turns import SideTurns, may_be_side
from proxy.relay.unread_requests import unread_answer
from proxy.versions.live_version import Lease
from store.errors import StoreError
from store.records import NewCompletion, PromptLesson, Requester

log = structlog.get_logger()

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_AT_ONCE: Final = contextlib.nullcontext()
_ONE_TRY: Final = contextlib.nullcontext((None, None))  # of a client that does not count its tries


class Relay:
    def __init__(self, parts: RelayParts, commands: ChatCommands, retries: Retries) -> None:
        self.parts = parts
        self._commands = commands
        self._earlier = PreviousResponses(parts.store, parts.redactor)
        self._retries = retries
        self._side_turns = SideTurns(parts.store, parts.underway)
        self.last_request = -math.inf  # monotonic; the learner waits for quiet
        self._heads: WeakKeyDictionary[RequestHead, HeadFacts] = WeakKeyDictionary()

    # The captured routes

    async def data(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        started = time.perf_counter()
        self.last_request = time.monotonic()
        try:
            response = await self._data(request, dialect, started)
        except (ProxyError, StoreError) as error:
            failed = _as_proxy_error(error)
            response = failed.response(dialect.error(failed))
        self.parts.metrics.answered(dialect.name, response.status)
        return response

    async def _data(self, request: web.Request, dialect: Dialect, started: float) -> web.StreamResponse:
        head, parts = self._heads.get(request[HEAD]) or self._facts(request[HEAD]), self.parts
        raw = await plain_body(request, head.coding, parts.settings.server.max_body_bytes)
        bodies = parts.recent.bodies
        prefix = bodies.known(raw)
        await hold_parsed(request, raw, prefix)
        heavy, facts = prefix.weight, (raw, bodies, prefix, dialect, head, request.headers)
        # Also what was said before has to be walked through: a thread for all of it, or none.
        read = body_facts(*facts) if heavy < LARGE else await in_thread(body_facts, *facts)
        content, as_came, agent, speaker = read
        body, parsed = content.parsed, as_came
        add: dict[str, bytes] = {}
        scope = Scope.of(request[PRINCIPAL], speaker.user, speaker.people)
        if dialect.goes_on and as_came.unreadable is None:
            add = await self._members_to_add(request, len(raw), dialect, body, parsed.previous, scope)
            parsed, body, heavy = await self._spelled_out(dialect, body, parsed, add, scope, speaker, heavy)
        user = scope.user or scope.principal.name
        speaker = speaker if user == speaker.user else speaker._replace(user=user)
        if not parsed.typed or head.side:
            agent = NOBODY
        elif parsed.messages is not as_came.messages:
            agent = agent_of(request.headers, parsed.messages)
        position, typed = None, parsed.messages
        if commands := may_be_commands(typed, agent):
            typed = as_typed(typed, agent)
            position = command_at(typed, agent) if heavy < LARGE else await off_loop(heavy, command_at, typed, agent)
        captured = not (head.off or as_came.unreadable is not None or speaker.session in parts.uncaptured.sessions)
        # A command is no part of what is captured, and acts once also where nothing is.
        is_counted = head.counted and (captured or position is not None)
        key = await off_loop(len(raw), key_of, request, raw) if is_counted else None
        tries = _ONE_TRY if key is None else self._retries.attempt(request, key, speaker.session)
        with tries as (attempt, first_try):
            if position is not None:
                parsed = replace(parsed, previous=as_came.previous, messages=typed[: position + 1])
                act = partial(self._said, parsed, self._asks(scope, speaker, parsed, agent), dialect.alone)
                text = await self._retries.once(attempt, first_try, act)
                self._side_turns.note_command(Requester(scope.principal.key, user))
                return await self._answer(request, dialect, parsed, text, self._earlier.local_id(dialect, as_came))
            if attempt and first_try and await self._retries.settle(attempt, first_try, parsed.n):
                return await attempt.again(request)
            context = RequestContext(
                request, head, dialect, Requester(scope.principal.key, user), speaker, agent, content, heavy,
                as_came.previous, started, attempt, (head.id or new_id()) if captured else None,
            )  # fmt: skip
            response = await self._ask(context, body, parsed, add, commands)
            if attempt is not None:
                attempt.keep(response)
            return response

    def _facts(self, head: RequestHead) -> HeadFacts:
        """Raises BadRequest."""
        self._heads[head] = facts = head_facts(head, self.parts.settings, self.parts.backend.headers())
        return facts

    async def _members_to_add(
        self,
        request: web.Request,
        size: int,
        dialect: Dialect,
        body: dict[str, Any],
        previous: str | None,
        scope: Scope,
    ) -> dict[str, bytes]:
        """The members of a request, of `size` bytes, that the answers which it names change. They are bounded as what
        is sent, and in the same account. Raises BadRequest, TooMany, Overloaded, TooLarge."""
        add = await self._earlier.spelled_out(dialect, body, previous, scope)
        if add:
            hold_named(request, size, add, self.parts.settings.server.max_body_bytes)
        return add

    async def _spelled_out(
        self,
        dialect: Dialect,
        body: dict[str, Any],
        parsed: ParsedRequest,
        add: Mapping[str, bytes],
        scope: Scope,
        speaker: RequestIdentity,
        heavy: int,
    ) -> tuple[ParsedRequest, dict[str, Any], int]:
        """The request with the answers in it that it only names, and its weight."""
        messages = parsed.messages
        items = await self._earlier.referred(dialect, body, scope, speaker.session)
        parsed = await off_loop(heavy, dialect.read, body, items) if items else parsed
        if not add:
            return parsed, body, heavy
        heavy += sum(map(weight, add.values()))
        body, parsed = await off_loop(heavy, _with, dialect, body, parsed, add)
        return replace(parsed, messages=marked(parsed.messages, messages)), body, heavy

    async def _ask(
        self, context: RequestContext, body: Any, parsed: ParsedRequest, add: dict[str, bytes], commands: bool
    ) -> web.StreamResponse:
        """A question for the model: leased, captured, sent. `body`, `asked` and `add` with all that it names.
        `commands`: whether there may be some in its history."""
        kept_messages: Sequence[int] | None = None
        if commands:
            kept_messages = await off_loop(context.weight, without_commands, parsed.messages, context.agent)
        if context.id is not None:  # else nothing is remembered of it
            if not _ID.fullmatch(context.id):
                raise BadRequest(
                    "`x-rl-completion-id` must be 1 to 128 letters, digits or `._:-`.", param="x-rl-completion-id"
                )
            self.parts.recent.bodies.remember(context.body)
        if add:
            parsed = replace(parsed, messages=unmarked(parsed.messages))
        if parsed.messages and kept_messages is not None and not kept_messages:
            raise BadRequest("There is no message for the model, only `/rl` commands.", param="messages")
        episode, pinned = False, None
        if context.id is not None and context.speaker.session is not None:  # an episode is a captured session
            episode, pinned = await self._episode(context, parsed, context.speaker.session)
        stream, admission = None, self.parts.admission
        if parsed.stream and context.dialect.framing == "sse" and (episode or admission.closed is not None):
            version = self.parts.live_version.version_of(parsed.model) if pinned is None else pinned
            stream = HeldStream(context.request, context.dialect, context.attempt, context.id, version)
        beat = stream.beat if stream else None
        try:
            arrival = time.perf_counter()
            async with self.parts.queue.turn(parsed.n, beat) if episode else _AT_ONCE:
                await admission.enter(beat)
                self.parts.throttle.enter()
                try:
                    context.started += time.perf_counter() - arrival  # waiting is not overhead
                    return await self._let_in(context, body, parsed, add, kept_messages, stream, pinned)
                finally:
                    self.parts.throttle.leave()
                    admission.leave()
        except (ProxyError, StoreError) as error:
            if stream is None or stream.response is None:
                raise
            return await stream.failed(_as_proxy_error(error))

    async def _episode(self, context: RequestContext, parsed: ParsedRequest, session: str) -> tuple[bool, int | None]:
        """Tell whether it is an episode's, and the version of that, unless the request itself names one. Raises Gone
        where the episode has ended."""
        live_version = self.parts.live_version
        live = live_version.version_of(parsed.model)
        live = None if live is None or live_version.names_version(parsed.model) else live
        begins = context.head.named.may_begin_episode
        assert context.requester.key is not None
        pin = await self.parts.episodes.pin(context.requester.key, session, live, begins=begins)
        return pin is not None, None if live is None or pin is None else pin.version

    async def _let_in(
        self,
        context: RequestContext,
        body: Any,
        parsed: ParsedRequest,
        add: dict[str, bytes],
        kept_messages: Sequence[int] | None,
        stream: HeldStream | None,
        pinned: int | None,
    ) -> web.StreamResponse:
        parts, size = self.parts, len(context.body.raw) + sum(map(len, add.values()))
        await parts.backend.ready()
        promised = stream.promised if stream else None
        lease = await parts.live_version.acquire(parsed.model, pinned if promised is None else promised)
        try:
            if kept_messages is not None and len(kept_messages) < len(parsed.messages):
                changes = await off_loop(context.weight, context.dialect.keep, body, parsed, kept_messages)
                add |= changes
                body, parsed = await off_loop(context.weight, _with, context.dialect, body, parsed, changes)
            if parsed.previous != context.previous:
                parsed = replace(parsed, previous=context.previous)
            sent = outgoing = OutgoingRequest(context.body.raw, add, body, parsed, context.body.items, context.weight)
            lessons = parts.lessons is not None and pinned is None
            taught = await self._lessons(context, parsed, lease, stream) if lessons else ()
            if taught:
                sent = await off_loop(context.weight, _taught, context.dialect, outgoing, taught)
            row = partial(self._row, context, outgoing, lease, size, taught)
            exchange = Exchange(parts, context, sent, lease, row, stream, taught)
            if parsed.unreadable is not None:
                return await unread_answer(parts, context, outgoing, lease, exchange)
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

    async def _lessons(
        self, context: RequestContext, parsed: ParsedRequest, lease: Lease, stream: HeldStream | None
    ) -> tuple[PromptLesson, ...]:
        """The lessons that fit. None, unless the request is captured, and a header can still name them."""
        has_begun = stream is not None and stream.response is not None
        if self.parts.lessons is None or context.id is None or context.agent is NOBODY or has_begun:
            return ()
        return await self.parts.lessons.for_request(context.dialect, parsed, context.requester, lease.version)

    def _row(
        self,
        context: RequestContext,
        outgoing: OutgoingRequest,
        lease: Lease,
        size: int,
        taught: tuple[PromptLesson, ...] = (),
    ) -> NewCompletion | Awaitable[NewCompletion]:
        """The row of a request; something to wait for, where it takes a thread or a look into the store."""
        parsed = outgoing.parsed
        if context.weight >= LARGE:
            return self._row_later(context, outgoing, lease, size, taught)
        lookup, request = _beside(self.parts.recent.history, context, parsed, size)
        # What is new is looked at for secrets, and the members beside the messages each time.
        if size >= WORTH_A_THREAD and lookup.fresh + len(request) >= WORTH_A_THREAD:
            return self._row_later(context, outgoing, lease, size, taught, (lookup, request))
        row = _row(context, parsed, lookup, request, lease, taught, self.parts)
        if may_be_side(row, parsed.messages, has_tools=bool(parsed.tools)):
            return self._row_aside(row, context, outgoing, lease)
        return self._remember(row, context, outgoing, lease)

    async def _row_later(
        self,
        context: RequestContext,
        outgoing: OutgoingRequest,
        lease: Lease,
        size: int,
        taught: tuple[PromptLesson, ...],
        telling_and_request: tuple[HistoryLookup, bytes] | None = None,
    ) -> NewCompletion:
        parsed = outgoing.parsed
        if telling_and_request is None:
            telling_and_request = await off_loop(
                context.weight, _beside, self.parts.recent.history, context, parsed, size
            )
        lookup, request = telling_and_request
        row = await in_thread(_row, context, parsed, lookup, request, lease, taught, self.parts)
        may_be = partial(may_be_side, row, parsed.messages, has_tools=bool(parsed.tools))
        if await off_loop(context.weight, may_be):
            return await self._row_aside(row, context, outgoing, lease)
        return self._remember(row, context, outgoing, lease)

    async def _row_aside(
        self, row: NewCompletion, context: RequestContext, outgoing: OutgoingRequest, lease: Lease
    ) -> NewCompletion:
        """The row as that of a side turn, if what was answered lately to whom it is of shows that."""
        rule = await self._side_turns.rule_of(row, outgoing.parsed.messages, context.weight)
        row = row if rule is None else replace(row, turn="side", turn_rule=rule)
        return self._remember(row, context, outgoing, lease)

    def _remember(
        self, row: NewCompletion, context: RequestContext, outgoing: OutgoingRequest, lease: Lease
    ) -> NewCompletion:
        if lease.version is not None and not lease.pinned:
            self.parts.recent.note(row, context.dialect, outgoing)
        return row

    async def _said(self, parsed: ParsedRequest, asks: CommandContext, is_single: bool) -> str:
        """Answer to a `/rl` line, which `asked` ends in: never sent to the model, never stored as a completion."""
        messages = await self._earlier.as_answered(parsed, asks.scope)
        return await self._commands.answer(messages, asks, is_bare=is_single)

    async def _answer(
        self, request: web.Request, dialect: Dialect, parsed: ParsedRequest, text: str, id: str
    ) -> web.StreamResponse:
        """An answer of ours."""
        kind, pieces = dialect.answer(text, id=id, parsed=parsed, created=int(time.time()))
        response = PacedStream(headers={"content-type": kind, "x-accel-buffering": "no"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    def _asks(
        self, scope: Scope, speaker: RequestIdentity, parsed: ParsedRequest, agent: Agent | None
    ) -> CommandContext:
        """Whoever names people speaks for them, and only those whom the settings list are admins."""
        admins = self.parts.settings.server.chat_admins
        model = parsed.model or self.parts.backend.served.model
        return CommandContext(scope, speaker, model, tuple(name for name in scope.names if name not in admins), agent)


def _as_proxy_error(error: ProxyError | StoreError) -> ProxyError:
    return error if isinstance(error, ProxyError) else StorageFailed(f"The store did not take it: {error}")


def _row(
    context: RequestContext,
    parsed: ParsedRequest,
    lookup: HistoryLookup,
    request: bytes,
    lease: Lease,
    taught: tuple[PromptLesson, ...],
    parts: RelayParts,
) -> NewCompletion:
    """`request`: its members beside the messages."""
    assert context.id is not None
    secrets: set[str] = set()
    redactor, backend, conversation = parts.redactor, parts.backend, lookup.told()
    served, rules = backend.served, parts.settings.turns.rules
    typed = last_words(parsed.messages)
    turn = turn_of(
        context.request.headers, context.body.parsed, parsed.messages, parsed.tools, rules, conversation.turns, typed
    )
    excerpt = words(parsed.messages, SHOWN + LONGEST) if typed is None else typed[: SHOWN + LONGEST]
    return NewCompletion(
        id=context.id,
        request_id=context.id,
        choice=0,
        created_at=time.time() - (time.perf_counter() - context.started),  # this is made later
        dialect=context.dialect.name,
        backend=backend.kind,
        model=parsed.model or served.model,
        served_model=lease.model,
        version=lease.version,
        session=context.speaker.session,
        user=context.requester.user,
        turn=turn.turn,
        turn_rule=turn.rule,
        streamed=parsed.stream,
        prompt=conversation.prompt,
        nodes=conversation.nodes,
        asides=conversation.asides,
        request=redactor.json(request, secrets),
        sampling={**served.sampling, **served.by_dialect.get(context.dialect.name, {}), **parsed.sampling},
        thread=conversation.thread,
        above=conversation.above,
        untrainable=parsed.untrainable or conversation.untrainable,
        asked=redactor.text(excerpt)[:SHOWN],
        typed=typed_in(parsed.messages, context.agent, redactor),
        tool_errors=marked_errors(parsed.messages),
        redacted=places(prompt=conversation.secrets, request=secrets) if conversation.secrets or secrets else (),
        key=context.requester.key,
        forms=conversation.forms,
        lessons=taught,
    )


def _beside(history: History, context: RequestContext, parsed: ParsedRequest, size: int) -> tuple[HistoryLookup, bytes]:
    """Knowledge of the messages, and the members beside them."""
    return HistoryLookup(history, parsed.messages, size), dumps(context.dialect.without_messages(context.body.parsed))


def _taught(dialect: Dialect, outgoing: OutgoingRequest, taught: Sequence[PromptLesson]) -> OutgoingRequest:
    """The same question with these lessons in it. What is captured of it is what its client sent."""
    changed = members(dialect, outgoing.body, taught)
    if not changed:
        return outgoing
    body, parsed = _with(dialect, outgoing.body, outgoing.parsed, changed)
    return replace(
        outgoing, add={**outgoing.add, **changed}, body=body, parsed=replace(parsed, previous=outgoing.parsed.previous)
    )


def _with(
    dialect: Dialect, body: dict[str, Any], parsed: ParsedRequest, changed: Mapping[str, bytes]
) -> tuple[dict[str, Any], ParsedRequest]:
    """The request with these members in place, read again."""
    if not changed:
        return body, parsed
    body = {**body, **{key: loads(value) for key, value in changed.items()}}
    parsed = dialect.read(body, parsed.referred)
    if len(parsed.messages) > MOST:
        raise too_many(len(parsed.messages))
    return body, parsed
