"""The way of a request from agent to backend: which route, whose request, a command or a question, which version.

Owns what happens before a request is sent: limits, parsing, speaker, commands out of the history, the lease, the row.
What happens from there on is an `Exchange`. Routes that no dialect knows pass through untouched.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from aiohttp import web

from proxy.access.limits import BODY, PacedStream
from proxy.access.reach import Reach
from proxy.access.security import who_asks
from proxy.access.unknown_route import MISSING, is_bare, lacking, mistaken
from proxy.backends.ask import down
from proxy.conversation.conversations import command_at, without_commands
from proxy.conversation.history_cache import History, Telling
from proxy.conversation.incremental_json import Body, KnownPrefix, SaidBefore
from proxy.conversation.redaction import WORTH_A_THREAD, places
from proxy.conversation.retries import Attempt, Retries, is_counted, key_of
from proxy.conversation.secret_shapes import LONGEST
from proxy.conversation.side_requests import QUOTATION, SUBAGENT, SYSTEM, is_subagent, may_quote, quotes
from proxy.conversation.turns import DEFAULT, marked_side, said_turn, turn_of
from proxy.conversation.typed_words import marked_errors, typed_in
from proxy.conversation.user_text import SHOWN, words
from proxy.core.agent_wrappers import CLAUDE_CODE, NOBODY, Agent, agent_of, as_typed, name_on, sender_of
from proxy.core.backend_http import NoHttp
from proxy.core.errors import BackendBroke, BadRequest, ProxyError, StorageFailed
from proxy.core.json_edit import dumps, loads
from proxy.core.offload import LARGE, off_loop, off_loop_above, weight
from proxy.core.upstream import end_to_end, no_http, target_of, whole
from proxy.dialects import Asked, Dialect
from proxy.dialects.base import Question
from proxy.dialects.speaker import Speaker, may_begin_episode, people, speaker
from proxy.feedback.chat_command import Asks, ChatCommands
from proxy.relay.capture import new_id
from proxy.relay.capture_optout import says_off
from proxy.relay.early_stream import HeldStream
from proxy.relay.exchange import Exchange
from proxy.relay.lessons import members
from proxy.relay.parts import Parts
from proxy.relay.previous_response import EarlierAnswers, marked, unmarked
from proxy.relay.request_body import bounded, parsed, read
from proxy.versions.live_version import Lease
from store.captured.recent_answers import SYSTEM_TEXTS
from store.captured.tree import ASIDE
from store.errors import StoreError
from store.records import Asker, NewCompletion, PromptLesson

log = structlog.get_logger()

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_AT_ONCE: Final = contextlib.nullcontext()
QUOTABLE: Final = 100  # recent main turns that a request may quote


class Call(NamedTuple):
    """A request as it came, and whose it is."""

    request: web.Request
    dialect: Dialect
    who: Speaker
    agent: Agent | None  # that sent it, where that is known; NOBODY where no person types
    body: Body
    weight: int  # bytes that it counts as, with those that it named
    previous: str | None  # the answer that it named
    started: float
    attempt: Attempt | None  # where its SDK may send it again
    id: str | None  # of its completion; None where it is not captured


class Relay:
    def __init__(self, parts: Parts, commands: ChatCommands, retries: Retries) -> None:
        self.parts = parts
        self._commands = commands
        self._earlier = EarlierAnswers(parts.store, parts.redactor)
        self._retries = retries
        self.last_request = -math.inf  # monotonic; the learner waits for quiet

    # The captured routes

    async def data(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        started = time.perf_counter()
        self.last_request = time.monotonic()
        try:
            response = await self._data(request, dialect, started)
        except (ProxyError, StoreError) as error:
            failed = _as_proxy_error(error)
            response = failed.response(dialect.error(failed))
        self.parts.metrics.requests.labels(dialect.name, str(response.status)).inc()
        return response

    async def _data(self, request: web.Request, dialect: Dialect, started: float) -> web.StreamResponse:
        off = says_off(request.headers)
        said_turn(request.headers)  # what is wrong with it is said before anything is done
        raw = await read(request, self.parts.settings.server.max_body_bytes)
        heavy, known = weight(raw), self.parts.recent.bodies.known(raw)
        # Also what was said before has to be walked through: a thread for all of it, or none.
        said, as_came, agent, named = await off_loop(
            heavy, _read, raw, self.parts.recent.bodies, known, dialect, request
        )
        body = said.parsed
        add: dict[str, bytes] = {}
        spelled, asked = body, as_came
        path_session = request.match_info.get("session")
        claude_code = agent is not None and agent.name == CLAUDE_CODE
        who = speaker(
            request.headers,
            path_session=path_session,
            user=asked.user,
            session=asked.session,
            body=body,
            typed=named,
            claude_code=claude_code,
        )
        reach = Reach.of(who_asks(request), who.user, people(request.headers, body, named, claude_code=claude_code))
        if dialect.goes_on:
            items = await self._earlier.referred(dialect, body, reach, who.session)
            asked = await off_loop(heavy, dialect.read, body, items) if items else asked
            if add := await self._earlier.spelled_out(dialect, body, reach):
                heavy += sum(map(weight, add.values()))
                spelled, asked = await off_loop(heavy, _with, dialect, body, asked, add)
                asked = replace(asked, messages=marked(asked.messages, as_came.messages))
        who = who._replace(user=reach.user or reach.who.name)
        side = marked_side(request.headers, self.parts.settings.turns.rules)
        if not asked.typed or side:
            agent = NOBODY
        elif asked.messages is not as_came.messages:
            agent = agent_of(request.headers, asked.messages)
        typed = as_typed(asked.messages, agent)
        at = command_at(typed, agent) if heavy < LARGE else await off_loop(heavy, command_at, typed, agent)
        key = await off_loop(len(raw), key_of, request, raw) if is_counted(request) else None
        captured = not (off or self.parts.uncaptured.has(who.session))
        # A command is no part of what is captured, and acts once also where nothing is.
        key = key if captured or at is not None else None
        with self._retries.attempt(request, key, who.session) as (attempt, earlier):
            if at is not None:
                asked = replace(asked, previous=as_came.previous, messages=typed[: at + 1])
                act = partial(self._said, asked, self._asks(reach, who, asked, agent), dialect.alone)
                text = await self._retries.once(attempt, earlier, act)
                return await self._answer(request, dialect, asked, text, self._earlier.local_id(dialect, as_came))
            if attempt and earlier and await self._retries.settle(attempt, earlier, asked.n):
                return await attempt.again(request)
            id = _completion_id(request) if captured else None
            call = Call(request, dialect, who, agent, said, heavy, as_came.previous, started, attempt, id)
            response = await self._ask(call, spelled, asked, add)
            if attempt is not None:
                attempt.keep(response)
            return response

    async def _ask(self, call: Call, body: Any, asked: Asked, add: dict[str, bytes]) -> web.StreamResponse:
        """A question for the model: leased, captured, sent. `body`, `asked` and `add` with all that it names."""
        kept = await off_loop(call.weight, without_commands, asked.messages, call.agent)
        if call.id is not None:  # else nothing is remembered of it
            self.parts.recent.bodies.remember(call.body)
        if add:
            asked = replace(asked, messages=unmarked(asked.messages))
        if asked.messages and not kept:
            raise BadRequest("There is no message for the model, only `/rl` commands.", param="messages")
        episode, pinned = await self._episode(call, asked)
        came, held = time.perf_counter(), None
        if asked.stream and call.dialect.framing == "sse":
            version = self.parts.swap.version_of(asked.model) if pinned is None else pinned
            held = HeldStream(call.request, call.dialect, call.attempt, call.id, version)
        beat = held.beat if held else None
        try:
            async with self.parts.queue.turn(asked.n, beat) if episode else _AT_ONCE, self.parts.door.through(beat):
                # What it has waited is no overhead of ours.
                call = call._replace(started=call.started + time.perf_counter() - came)
                with self.parts.giving_way.answering():
                    return await self._let_in(call, body, asked, add, kept, held, pinned)
        except (ProxyError, StoreError) as error:
            if held is None or held.response is None:
                raise
            return await held.failed(_as_proxy_error(error))

    async def _episode(self, call: Call, asked: Asked) -> tuple[bool, int | None]:
        """Tell whether it is an episode's, and the version of that, unless the request itself names one. Raises Gone
        where the episode has ended."""
        if call.id is None:  # nothing of it is kept, so it is no part of one
            return False, None
        swap = self.parts.swap
        live = swap.version_of(asked.model)
        live = None if live is None or swap.names_version(asked.model) else live
        begins = may_begin_episode(call.request.headers, call.request.match_info.get("session"))
        pin = await self.parts.episodes.pin(who_asks(call.request).key, call.who.session, live, begins=begins)
        return pin is not None, None if live is None or pin is None else pin.version

    async def _let_in(
        self,
        call: Call,
        body: Any,
        asked: Asked,
        add: dict[str, bytes],
        kept: Sequence[Any],
        held: HeldStream | None,
        pinned: int | None,
    ) -> web.StreamResponse:
        size = len(call.body.raw) + _size(add)
        await self.parts.backend.ready()
        promised = held.promised if held else None
        lease = await self.parts.swap.acquire(asked.model, pinned if promised is None else promised)
        try:
            if len(kept) < len(asked.messages):
                less = await off_loop(call.weight, call.dialect.keep, body, asked, kept)
                add |= less
                body, asked = await off_loop(call.weight, _with, call.dialect, body, asked, less)
            if asked.previous != call.previous:
                asked = replace(asked, previous=call.previous)
            question = Question(call.body.raw, add, body, asked, call.body.items, call.weight)
            taught = () if pinned is not None else await self._lessons(call, asked, lease, held)
            sent = await off_loop(call.weight, _taught, call.dialect, question, taught) if taught else question
            exchange = Exchange(
                self.parts, call.request, call.dialect, sent, lease, call.started, call.attempt, held, taught
            )
            if call.id is not None:
                row = partial(self._row, call, asked, lease, size, taught)
                await exchange.capture_as(call.id, row, partial(self._remember, call.dialect, question, lease))
                if call.attempt is not None:
                    call.attempt.completion = call.id
            return await exchange.run()
        finally:
            lease.release()

    async def _lessons(
        self, call: Call, asked: Asked, lease: Lease, held: HeldStream | None
    ) -> tuple[PromptLesson, ...]:
        """The lessons that fit. None, unless lessons are on, the request is captured, and a header can still
        name them."""
        told = held is not None and held.response is not None
        if self.parts.lessons is None or call.id is None or call.agent is NOBODY or told:
            return ()
        whose = Asker(who_asks(call.request).key, call.who.user)
        return await self.parts.lessons.for_request(call.dialect, asked, whose, lease.version)

    async def _row(
        self, call: Call, asked: Asked, lease: Lease, size: int, taught: tuple[PromptLesson, ...] = ()
    ) -> NewCompletion:
        telling, request = await off_loop(call.weight, _beside, self.parts.recent.history, call, asked, size)
        # What is new is looked at for secrets, and the members beside the messages each time.
        looked = telling.fresh + len(request) if call.weight < LARGE else call.weight
        row = await off_loop_above(WORTH_A_THREAD, looked, _row, call, asked, telling, request, lease, self.parts)
        if taught:
            row = replace(row, lessons=taught)
        rule = await self._aside(row, asked, call.weight) if row.turn_rule == DEFAULT else None
        return row if rule is None else replace(row, turn="side", turn_rule=rule)

    async def _aside(self, row: NewCompletion, asked: Asked, heavy: int) -> str | None:
        """By which rule this is a side turn, beside what was answered lately to whom it is of. `heavy`: what the
        request counts as."""
        store, whose = self.parts.store, [Asker(row.key, row.user)]
        if row.above is None:
            if not (await off_loop(heavy, may_quote, asked.messages)):
                return None
            lately = await store.answers.main_turns_of(whose, limit=QUOTABLE)
            quoted = await off_loop(heavy, quotes, asked.messages, lately)
            return QUOTATION if quoted else None
        if not any(message.role in ASIDE for message in row.prompt):
            return None
        newest = next((m.role for m in reversed(row.prompt) if m.role not in ASIDE), "")
        goes_on = await store.answers.goes_on_from(row.above, whose, SYSTEM)
        # A character has at most four bytes.
        bodies = [message.body[: 4 * SYSTEM] for message in row.prompt if message.role in ASIDE]
        system = [body.decode(errors="ignore") for body in bodies[:SYSTEM_TEXTS]]
        return SUBAGENT if is_subagent(goes_on, system, tools=bool(asked.tools), new_words=newest == "user") else None

    def _remember(self, dialect: Dialect, question: Question, lease: Lease, row: NewCompletion) -> None:
        if lease.version is not None and not lease.pinned:
            self.parts.recent.note(row, dialect, question)

    async def _said(self, asked: Asked, asks: Asks, alone: bool) -> str:
        """Answer to a `/rl` line, which `asked` ends in: never sent to the model, never stored as a completion."""
        messages = await self._earlier.as_answered(asked, asks.reach)
        return await self._commands.answer(messages, asks, alone=alone)

    async def _answer(
        self, request: web.Request, dialect: Dialect, asked: Asked, text: str, id: str
    ) -> web.StreamResponse:
        """An answer of ours."""
        kind, pieces = dialect.answer(text, id=id, asked=asked, created=int(time.time()))
        response = PacedStream(headers={"content-type": kind, "x-accel-buffering": "no"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    def _asks(self, reach: Reach, who: Speaker, asked: Asked, agent: Agent | None) -> Asks:
        """Whoever names people speaks for them, and only those whom the settings list are admins."""
        admins = self.parts.settings.server.chat_admins
        model = asked.model or self.parts.backend.served.model
        return Asks(reach, who, model, tuple(name for name in reach.names if name not in admins), agent)

    # Everything else

    async def passthrough(self, request: web.Request) -> web.StreamResponse:
        """Byte for byte in both directions, compressed bodies as they are. Raises NotFound for a wrong base URL."""
        if (wrong := mistaken(request)) is not None:
            raise wrong
        async with self.parts.door.through():
            with self.parts.giving_way.answering():
                await self.parts.backend.ready()
                return await self._passed_through(request)

    async def _passed_through(self, request: web.Request) -> web.StreamResponse:
        parts, upstream, response = self.parts, None, None
        body = request.get(BODY) or (parts.limits.passing(request) if request.can_read_body else None)
        assert parts.connections is not None
        try:
            upstream = await parts.connections.ask(
                request.method, parts.backend.url, target_of(request), parts.request_headers(request), body
            )
            said = b"" if request.method == "HEAD" or upstream.status not in MISSING else await whole(upstream)
            if said and is_bare(upstream.status, said):
                return lacking(request, upstream.status, parts.backend.kind)
            response = PacedStream(status=upstream.status, headers=end_to_end(upstream.headers))
            await response.prepare(request)
            if said:
                await response.write(said)
            async for piece in upstream.pieces():
                await response.write(piece)
            await response.write_eof()
            return response
        except BackendBroke as error:
            if response is None:
                raise
            log.warning("an answer that passes through broke off", path=request.path, error=str(error.__cause__))
            if request.transport is not None:
                request.transport.close()  # as the backend did: there is no place in these bytes for words of ours
            return response
        except NoHttp as error:
            raise no_http(error) from error
        except (TimeoutError, OSError) as error:
            if response is not None:
                raise  # the answer had begun, and its client is gone
            raise down(parts.backend.url, error, parts.backend.kind) from error
        finally:
            if upstream is not None:
                upstream.close()


def _as_proxy_error(error: ProxyError | StoreError) -> ProxyError:
    return error if isinstance(error, ProxyError) else StorageFailed(f"The store did not take it: {error}")


def _size(members: Mapping[str, bytes]) -> int:
    return sum(len(value) for value in members.values())


def _row(call: Call, asked: Asked, telling: Telling, request: bytes, lease: Lease, parts: Parts) -> NewCompletion:
    """`request`: its members beside the messages."""
    assert call.id is not None
    beside: set[str] = set()
    redactor, backend, told = parts.redactor, parts.backend, telling.told()
    served, rules = backend.served, parts.settings.turns.rules
    turn = turn_of(call.request.headers, call.body.parsed, asked.messages, asked.tools, rules, told.turns)
    return NewCompletion(
        id=call.id,
        request_id=call.id,
        choice=0,
        created_at=time.time() - (time.perf_counter() - call.started),  # this is made later
        dialect=call.dialect.name,
        backend=backend.kind,
        model=asked.model or served.model,
        served_model=lease.model,
        version=lease.version,
        session=call.who.session,
        user=call.who.user,
        turn=turn.turn,
        turn_rule=turn.rule,
        streamed=asked.stream,
        prompt=told.prompt,
        nodes=told.nodes,
        asides=told.asides,
        request=redactor.json(request, beside),
        sampling={**served.sampling, **served.by_dialect.get(call.dialect.name, {}), **asked.sampling},
        thread=told.thread,
        above=told.above,
        untrainable=asked.untrainable or told.untrainable,
        asked=redactor.text(words(asked.messages, SHOWN + LONGEST))[:SHOWN],
        typed=typed_in(asked.messages, call.agent, redactor),
        tool_errors=marked_errors(asked.messages),
        redacted=places(prompt=told.secrets, request=beside),
        key=who_asks(call.request).key,
        forms=told.forms,
    )


def _read(
    raw: bytes, bodies: SaidBefore, known: KnownPrefix, dialect: Dialect, request: web.Request
) -> tuple[Body, Asked, Agent | None, list[Any]]:
    """The body, what its dialect makes of it, the agent that sent it, and whom its newest message names. Agents name
    people in one way, chat completions in another. Raises BadRequest."""
    body, asked = parsed(raw, bodies, known, dialect)
    agent = agent_of(request.headers, asked.messages)
    found = (sender_of(asked.messages, agent), name_on(asked.messages, agent))
    return body, asked, agent, [one for one in found if one is not None]


def _beside(history: History, call: Call, asked: Asked, size: int) -> tuple[Telling, bytes]:
    """Knowledge of the messages, and the members beside them."""
    beside = {k: v for k, v in call.body.parsed.items() if k not in call.dialect.carriers}
    return history.telling(asked.messages, size), dumps(beside)


def _completion_id(request: web.Request) -> str:
    found = request.headers.get("x-rl-completion-id") or new_id()
    if not _ID.fullmatch(found):
        raise BadRequest("`x-rl-completion-id` must be 1 to 128 letters, digits or `._:-`.", param="x-rl-completion-id")
    return found


def _taught(dialect: Dialect, question: Question, taught: Sequence[PromptLesson]) -> Question:
    """The same question with these lessons in it. What is captured of it is what its client sent."""
    changed = members(dialect, question.body, taught)
    if not changed:
        return question
    body, asked = _with(dialect, question.body, question.asked, changed)
    return replace(
        question, add={**question.add, **changed}, body=body, asked=replace(asked, previous=question.asked.previous)
    )


def _with(
    dialect: Dialect, body: dict[str, Any], asked: Asked, changed: Mapping[str, bytes]
) -> tuple[dict[str, Any], Asked]:
    """The request with these members in place, read again."""
    if not changed:
        return body, asked
    body = {**body, **{key: loads(value) for key, value in changed.items()}}
    return body, bounded(dialect.read(body, asked.referred))
