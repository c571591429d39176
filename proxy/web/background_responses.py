"""Responses that the backend works on in the background: asked for again, streamed again, cancelled.

Owns the way from such a response to its completion. Its row is pending under our id, with the id by which the backend
knows it, and outlives a restart. Whoever asks for it gets what the backend says; what is final is captured first. Not
here: whose response it is (proxy.web.stored_responses).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import structlog
from aiohttp import web
from multidict import CIMultiDict

from proxy.access.pace import PacedStream
from proxy.access.unknown_route import MISSING
from proxy.backends.ask import down_error
from proxy.conversation.conversations import as_chat, thread
from proxy.conversation.modalities import FURTHER
from proxy.core.backend_answer import Answer
from proxy.core.errors import ProxyError
from proxy.core.http_message import NoHttp
from proxy.core.json_edit import WholeAnswer, dumps, loads
from proxy.core.offload import off_loop
from proxy.core.redirects import refuse
from proxy.core.sse import Event, EventSplitter
from proxy.core.upstream import MOST_SHORT, answer_headers, let_go, no_http, read_short
from proxy.dialects import RESPONSES
from proxy.dialects.base import ODD, OutgoingRequest
from proxy.relay.answer_room import AnswerRoom
from proxy.relay.codecs import Native
from proxy.relay.exchange import NOT_THEIRS
from proxy.relay.framing import OK, splitter_of
from proxy.relay.model_servers import ModelServer
from proxy.relay.parts import RelayParts
from proxy.relay.request_body import room_for
from store.records import Completion, Status

log = structlog.get_logger()

FINAL: Final = ("completed", "incomplete", "failed", "cancelled")  # statuses
RESPONSE_GONE: Final = "the backend does not have this response any more, and nobody fetched it when it was final"
CANCELLED: Final = "it was cancelled"
LOOK_S: Final = 60.0  # a beat of silence that nobody is told of


class BackgroundResponses:
    def __init__(self, parts: RelayParts) -> None:
        self._parts = parts
        self._storing = asyncio.Lock()  # two polls may see the final answer at once

    async def get(self, request: web.Request, completion: Completion, id: str) -> web.StreamResponse | None:
        """The response as the backend has it now. None where it does not have it any more, or where it has changed one
        that was final. Raises ProxyError."""
        query = f"?{request.query_string}" if request.query_string else ""
        upstream = await self._ask(request, "GET", completion, f"/v1/responses/{quote(id, safe='')}{query}")
        return await self._pass_on(request, completion, upstream)

    async def cancel(self, request: web.Request, completion: Completion, id: str) -> web.StreamResponse | None:
        """Likewise."""
        upstream = await self._ask(request, "POST", completion, f"/v1/responses/{quote(id, safe='')}/cancel")
        return await self._pass_on(request, completion, upstream)

    async def delete(self, request: web.Request, completion: Completion, id: str) -> None:
        """Have the backend drop it. Where it cannot, it goes here all the same."""
        try:
            upstream = await self._ask(request, "DELETE", completion, f"/v1/responses/{quote(id, safe='')}")
        except ProxyError as error:
            log.info("a response was not deleted at the backend", completion=completion.new.id, error=error.message)
        else:
            if upstream is not None:
                upstream.close()

    async def _ask(self, request: web.Request, method: str, completion: Completion, target: str) -> Answer | None:
        """The answer of the place that has it, among all where its model answers."""
        parts, server = self._parts, self._server(completion)
        await server.backend.ready()
        assert parts.connections is not None
        headers = parts.request_headers(request, server)
        headers["accept-encoding"] = "identity"  # the answer has to be read here
        for address in server.backend.addresses(completion.new.served_model):
            try:
                upstream = await parts.connections.ask(method, address.url, target, headers, None, unpack=True)
                refuse(address.url, upstream)
            except NoHttp as error:
                raise no_http(error) from error
            except (TimeoutError, OSError) as error:
                raise down_error(address.url, error, server.backend.kind, server.section) from error
            if upstream.status not in MISSING:
                return upstream
            await let_go(upstream)
        return None

    async def _pass_on(
        self, request: web.Request, completion: Completion, upstream: Answer | None
    ) -> web.StreamResponse | None:
        if upstream is None:
            await self._store(request, completion, None, "error", RESPONSE_GONE)
            return None
        try:
            headers = answer_headers(upstream.headers, NOT_THEIRS)
            headers["x-rl-completion-id"] = completion.new.id
            if upstream.status not in OK:
                return web.Response(
                    status=upstream.status,
                    body=await read_short(upstream, room_for(request, MOST_SHORT)),
                    headers=headers,
                )
            streams = request.query.get("stream") == "true"
            splitter = await splitter_of(upstream, RESPONSES, LOOK_S, _nothing, is_streaming=streams)
            if splitter is not None:
                return await self._stream(request, completion, upstream, splitter, headers)
            answer = WholeAnswer(
                await read_short(upstream, room_for(request, self._parts.settings.server.max_body_bytes))
            )
            if completion.end is not None and not await off_loop(len(answer.raw), self._is_stored, completion, answer):
                return None  # what was stored, and may be rated, stays what its client sees
            await self._store_final(request, completion, answer)
            body = await off_loop(len(answer.raw), self._codec(completion).whole, answer)
            return web.Response(status=upstream.status, body=body, headers=headers)
        finally:
            upstream.close()

    def _is_stored(self, completion: Completion, answer: WholeAnswer) -> bool:
        """Tell whether this has the words of the answer that was final before."""
        assert completion.end is not None
        try:
            text = "".join(reply.text for reply in RESPONSES.whole(answer.parsed))
        except ODD:
            return False
        return self._parts.redactor.text(text) == (completion.end.text or "")

    async def _stream(
        self,
        request: web.Request,
        completion: Completion,
        upstream: Answer,
        splitter: EventSplitter,
        headers: CIMultiDict[str],
    ) -> web.StreamResponse:
        """Its events, again or from some number on; before the last one, the response that it has is stored."""
        response, codec = PacedStream(status=upstream.status, headers=headers), self._codec(completion)

        async def send(event: Event) -> None:
            if RESPONSES.terminal(event) and (answer := _response_in(event)) is not None:
                await self._store_final(request, completion, answer)
            await response.write(codec.event(event))

        await response.prepare(request)
        room, is_raw = AnswerRoom(request, self._parts.settings.server), False
        async for piece in upstream.pieces():
            events = piece if is_raw else splitter.whole(piece)
            if not (is_raw or room.fits(splitter, events)):  # it is too long to be looked at
                is_raw, events = True, events + splitter.remainder()
                room.end()
            if is_raw:
                await response.write(events)
                continue
            for event in splitter.events(events):
                await send(event)
        remainder = splitter.remainder()
        if RESPONSES.terminal(event := Event(remainder)):  # its blank line is lacking
            await send(event)
            remainder = b""
        await response.write_eof(remainder)
        return response

    def _codec(self, completion: Completion) -> Native:
        """The codec that makes the backend's bytes the client's, as for the first answer."""
        body = {**loads(completion.new.request), "input": "x"}  # the messages are not needed
        outgoing = OutgoingRequest(b"", {}, body, RESPONSES.parse(body))
        server = self._server(completion)
        is_renamed = completion.new.version is not None or server.is_further
        model = completion.new.model if is_renamed else None
        return Native(RESPONSES, outgoing, server.backend.capabilities, completion.new.id, model)

    def _server(self, completion: Completion) -> ModelServer:
        """The server that answered, as the settings are now."""
        own_server, is_further = self._parts.own_server, completion.new.untrainable == FURTHER
        return self._parts.further.get(completion.new.model, own_server) if is_further else own_server

    async def _store_final(self, request: web.Request, completion: Completion, answer: WholeAnswer) -> None:
        """Store the answer, if it is final."""
        status = await off_loop(len(answer.raw), _status, answer)
        if status in FINAL:
            end: tuple[Status, str | None] = ("partial", CANCELLED) if status == "cancelled" else ("done", None)
            await self._store(request, completion, answer, *end)

    async def _store(
        self,
        request: web.Request,
        completion: Completion,
        answer: WholeAnswer | None,
        status: Status,
        error: str | None,
    ) -> None:
        """End its completion, unless that has ended."""
        async with self._storing:
            current = await self._parts.store.completions.get(completion.new.id)
            if current is None or current.status != "pending":
                return
            row = current.new
            parsed = RESPONSES.parse({**loads(row.request), "input": "x"})
            server = self._server(completion)
            keepable = partial(self._parts.keepable, request, server)
            capture = self._parts.capture(row.id, parsed, RESPONSES, keepable, server.backend)
            messages = [as_chat(message) for message in row.prompt]
            capture.adopt(replace(row, thread=thread(messages, self._parts.redactor.message)))
            if answer is not None:
                capture.reader.take_whole(answer)
            await capture.finish(status, error=error)


async def _nothing() -> None:
    """Nobody waits for a word."""


def _status(answer: WholeAnswer) -> Any:
    try:
        return answer.parsed.get("status")
    except (ValueError, AttributeError):
        return None


def _response_in(event: Event) -> WholeAnswer | None:
    """The response that a last event repeats."""
    response = event.json().get("response")
    return WholeAnswer(dumps(response)) if isinstance(response, dict) and "output" in response else None
