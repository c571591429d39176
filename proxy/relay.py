"""The way of a request from agent to backend: which route, whose request, a command or a question, which version.

Owns what happens before a request is sent: limits, parsing, speaker, commands out of the history, the lease, the row.
What happens from there on is an `Exchange`. Routes that no dialect knows pass through untouched.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import aiohttp
from aiohttp import web

from config.sections import TurnRule
from proxy.backends.base import Backend
from proxy.backends.openai import down
from proxy.capture import new_id
from proxy.chat_command import ChatCommands
from proxy.conversations import Speaker, canonical, command_at, speaker, thread, without_commands
from proxy.dialects import Asked, Dialect
from proxy.earlier import EarlierAnswers
from proxy.errors import BadRequest, ProxyError, StorageFailed, TooLarge
from proxy.exchange import GONE, Exchange, Parts
from proxy.large import off_loop
from proxy.retries import Attempt, Retries, key_of
from proxy.security import ROLE
from proxy.spoken import words
from proxy.swap import Lease
from proxy.trainable import more_than_text
from proxy.turns import turn_of
from proxy.upstream import end_to_end, upstream_path
from proxy.ways import Question
from proxy.wire import dumps, loads
from store.errors import StoreError
from store.records import NewCompletion

_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # as zlib wants them
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Call(NamedTuple):
    """A request as it came, and whose it is."""

    request: web.Request
    dialect: Dialect
    who: Speaker
    raw: bytes
    given: Any  # the body, parsed
    previous: str | None  # the answer that it named
    started: float
    attempt: Attempt | None  # where its SDK may send it again


class Relay:
    def __init__(self, parts: Parts, commands: ChatCommands) -> None:
        self.parts = parts
        self._commands = commands
        self._earlier = EarlierAnswers(parts.store)
        self._retries = Retries(parts.store)
        self.last_request = 0.0  # Unix seconds; the learner waits for quiet

    # The captured routes

    async def data(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        started = time.perf_counter()
        self.last_request = time.time()
        try:
            response = await self._data(request, dialect, started)
        except ProxyError as error:
            response = error.response(dialect.error(error))
        except StoreError as error:
            failed = StorageFailed(f"The store did not take it: {error}")
            response = failed.response(dialect.error(failed))
        self.parts.metrics.requests.labels(dialect.name, str(response.status)).inc()
        return response

    async def _data(self, request: web.Request, dialect: Dialect, started: float) -> web.StreamResponse:
        raw = await _body(request, self.parts.settings.server.max_body_bytes)
        body, as_came = await off_loop(len(raw), _parsed, raw, dialect)
        add: dict[str, bytes] = {}
        spelled, asked = body, as_came
        if dialect.goes_on:
            add = await self._earlier.spelled_out(dialect, body, request.headers.get("x-rl-user") or asked.user)
            spelled, asked = await off_loop(_size(add), _with, dialect, body, asked, add)
        path_session = request.match_info.get("session")
        who = speaker(request.headers, path_session=path_session, user=asked.user, session=asked.session)
        size = len(raw) + _size(add)
        if (at := await off_loop(size, command_at, asked.messages)) is not None:
            asked = replace(asked, previous=as_came.previous)
            return await self._command(request, dialect, asked, at, who, self._earlier.local_id(dialect, as_came))
        key = await off_loop(len(raw), key_of, request, raw)
        with self._retries.attempt(request, key) as (attempt, earlier):
            if attempt and earlier and await self._retries.settle(attempt, earlier, asked.n):
                return await attempt.again(request)
            call = Call(request, dialect, who, raw, body, as_came.previous, started, attempt)
            response = await self._ask(call, spelled, asked, add)
            if attempt is not None:
                attempt.keep(response)
            return response

    async def _ask(self, call: Call, body: Any, asked: Asked, add: dict[str, bytes]) -> web.StreamResponse:
        """A question for the model: leased, captured, sent. `body`, `asked` and `add` with all that it names."""
        size = len(call.raw) + _size(add)
        kept = await off_loop(size, without_commands, asked.messages)
        if asked.messages and not kept:
            raise BadRequest("There is no message for the model, only `/rl` commands.", param="messages")
        await self.parts.backend.ready()
        lease = await self.parts.swap.acquire(asked.model)
        try:
            if len(kept) < len(asked.messages):
                less = await off_loop(size, call.dialect.keep, body, asked, kept)
                add |= less
                body, asked = await off_loop(size, _with, call.dialect, body, asked, less)
            question = Question(call.raw, add, body, replace(asked, previous=call.previous))
            exchange = Exchange(self.parts, call.request, call.dialect, question, lease, call.started, call.attempt)
            if call.request.headers.get("x-rl-capture") != "off":
                rules = self.parts.settings.turns.rules
                row = await off_loop(size, _row, call, asked, rules, lease, self.parts.backend)
                await exchange.capture_as(row)
                if call.attempt is not None:
                    call.attempt.completion = row.id
            return await exchange.run()
        finally:
            lease.release()

    async def _command(
        self, request: web.Request, dialect: Dialect, asked: Asked, at: int, who: Speaker, id: str
    ) -> web.StreamResponse:
        """A `/rl` line: answered here, never sent to the model, never stored as a completion."""
        messages = await self._earlier.as_answered(replace(asked, messages=asked.messages[: at + 1]), who.user)
        text = await self._commands.answer(messages, who, role=request[ROLE], alone=dialect.alone)
        kind, pieces = dialect.answer(text, id=id, asked=asked, created=int(time.time()))
        response = web.StreamResponse(headers={"content-type": kind, "x-accel-buffering": "no"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    # Everything else

    async def passthrough(self, request: web.Request) -> web.StreamResponse:
        """Byte for byte in both directions, compressed bodies as they are."""
        response: web.StreamResponse | None = None
        await self.parts.backend.ready()
        try:
            assert self.parts.http is not None
            async with self.parts.http.request(
                request.method,
                self.parts.backend.url + upstream_path(request),
                headers=self.parts.request_headers(request),
                data=request.content if request.body_exists else None,
                allow_redirects=False,
            ) as upstream:
                response = web.StreamResponse(
                    status=upstream.status, reason=upstream.reason, headers=end_to_end(upstream.headers)
                )
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (TimeoutError, aiohttp.ClientConnectionError) as error:
            if response is not None or isinstance(error, GONE):
                raise  # the answer had begun: all we can do is break it off, as the backend did
            raise down(self.parts.backend.url, error) from error


def _parsed(raw: bytes, dialect: Dialect) -> tuple[Any, Asked]:
    try:
        body = loads(raw)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON ({error}).") from None
    return body, dialect.parse(body)


def _size(members: Mapping[str, bytes]) -> int:
    return sum(len(value) for value in members.values())


def _row(call: Call, asked: Asked, rules: Sequence[TurnRule], lease: Lease, backend: Backend) -> NewCompletion:
    request_id = call.request.headers.get("x-rl-completion-id") or new_id()
    if not _ID.fullmatch(request_id):
        raise BadRequest("`x-rl-completion-id` must be 1 to 128 letters, digits or `._:-`.", param="x-rl-completion-id")
    turn = turn_of(call.request.headers, call.given, asked.messages, asked.tools, rules)
    return NewCompletion(
        id=request_id,
        request_id=request_id,
        choice=0,
        created_at=time.time(),
        dialect=call.dialect.name,
        backend=backend.kind,
        model=asked.model or backend.served.model,
        served_model=lease.model,
        version=lease.version,
        session=call.who.session,
        user=call.who.user,
        turn=turn.turn,
        turn_rule=turn.rule,
        streamed=asked.stream,
        prompt=tuple(canonical(m) for m in asked.messages),
        request=dumps({k: v for k, v in call.given.items() if k not in call.dialect.carriers}),
        sampling={**backend.served.sampling, **asked.sampling},
        thread=thread(asked.messages),
        untrainable=asked.untrainable or more_than_text(asked.messages),
        asked=words(asked.messages),
    )


def _with(
    dialect: Dialect, body: dict[str, Any], asked: Asked, changed: Mapping[str, bytes]
) -> tuple[dict[str, Any], Asked]:
    """The request with these members in place, read again."""
    if not changed:
        return body, asked
    body = {**body, **{key: loads(value) for key, value in changed.items()}}
    return body, dialect.parse(body)


async def _body(request: web.Request, limit: int) -> bytes:
    """The body, unpacked. Raises TooLarge, BadRequest."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limit) from None
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return raw
    if encoding not in _WINDOWS:
        raise BadRequest(f"A body in content-encoding {encoding} is not read here; send it plain, or as gzip.")
    return await asyncio.to_thread(_unpacked, raw, encoding, limit)


def _unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    unpack = zlib.decompressobj(_WINDOWS[encoding])
    try:
        body = unpack.decompress(raw, limit)
    except zlib.error as error:
        raise BadRequest(f"The body is no {encoding} ({error}).") from None
    if unpack.unconsumed_tail:
        raise _too_large(limit)
    return body


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is over {limit} bytes; raise server.max_body_bytes to allow it.")
