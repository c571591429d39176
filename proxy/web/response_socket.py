"""The Responses API over a WebSocket: `GET /v1/responses` with an upgrade, as OpenAI's own mode for it.

Owns the messages. Each `response.create` is a request like any other, let in and captured as one. Its events come back
as messages. An answer with `store: false` can be continued on its own connection alone. Not
here: what a request means (relay), who may ask (access).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import WebSocketError, WSCloseCode, WSMsgType, web
from multidict import CIMultiDict

from proxy.access.bodies import BODY, HELD_BYTES
from proxy.access.keys import Scope
from proxy.access.security import principal_of
from proxy.core.errors import BadRequest, ProxyError, UnknownPrevious
from proxy.core.json_edit import dumps, loads
from proxy.core.offload import off_loop, whole_weight
from proxy.core.sharing.shares import Account, Room
from proxy.dialects.identity import head_identity
from proxy.relay.framing import OK
from proxy.relay.parts import RelayParts
from proxy.relay.previous_response import PreviousResponses
from proxy.relay.request_body import room_for
from proxy.web.error_middleware import Handler, shape_errors
from proxy.web.event_writer import EventWriter, answered_body, error_message, events_of, refusal, response_in

IDLE_S: Final = 600.0  # without a message, after which the place is another's
CREATE: Final = "response.create"
COPIES: Final = 2  # of a message: its frames, and what is made of them
MOST_UNSTORED: Final = 256  # answers of one connection that are only its own
_UPGRADE: Final = ("connection", "upgrade", "content-length", "x-rl-completion-id", "x-stainless-retry-count")

# Lets a request in as any other, and answers it by the handler.
Admits = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


class CountedFrames:
    """The parser of a connection's frames, with an account of those that nobody has taken yet. A message that does not
    come to its end is held whole by aiohttp, and nothing but this sees it."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request, account: Account, most: int) -> None:
        """In place of the parser that `socket` has from its start on."""
        protocol = request.protocol
        self._parser, self._queue = protocol._payload_parser, socket._reader
        self._room = Room(most, account, COPIES)
        self._size = 0
        protocol._payload_parser = None
        protocol.set_parser(self, protocol._data_received_cb)  # type: ignore[arg-type]  # it has the same two methods

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Feed aiohttp's parser; returns whether that was the end, and what is behind it."""
        self._size += len(data)
        if self._room.fits(self._size):
            fed: tuple[bool, bytes] = self._parser.feed_data(data)
            return fed
        assert self._queue is not None  # there since the start
        self._queue.set_exception(WebSocketError(WSCloseCode.TRY_AGAIN_LATER, "server.max_held_bytes are held"))
        return True, b""

    def feed_eof(self) -> None:
        self._parser.feed_eof()

    def take(self, size: int) -> None:
        """A message of so many bytes was taken: it is in its request's own account from here on. What came behind it
        stays in this one."""
        self._size = max(self._size - size - _head_size(size), 0)
        self._room.shrink(self._size)


class _Query(NamedTuple):
    content: bytes  # the body of the request
    previous: str | None  # the answer that it goes on from
    is_stored: bool


class ResponseSocket:
    def __init__(self, parts: RelayParts, admits: Admits, relay: Handler, plain: Handler) -> None:
        """`relay` answers a request of this format, `plain` whatever asks for no upgrade."""
        self._parts = parts
        self._previous = PreviousResponses(parts.store, parts.redactor)
        self._admits, self._relay, self._plain = admits, relay, plain

    async def get(self, request: web.Request) -> web.StreamResponse:
        most = self._parts.settings.server.max_body_bytes
        socket = web.WebSocketResponse(
            max_msg_size=most,
            heartbeat=30.0,
            compress=False,  # packed, it would be no size
            decode_text=False,  # a text would be four times as large by one wide character
        )
        if not socket.can_prepare(request):
            return await self._plain(request)
        await socket.prepare(request)
        frames = CountedFrames(socket, request, request[HELD_BYTES], 2 * most)
        unstored: dict[str, None] = {}  # ids, oldest first
        while not socket.closed:
            try:
                async with asyncio.timeout(IDLE_S):
                    message = await socket.receive()
            except TimeoutError:
                await socket.close()
                break
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                break
            raw = bytes(message.data)
            frames.take(len(raw))
            del message  # the answer takes its time
            try:
                query = await self._read(request, raw, unstored)
                del raw
                await self._answer(request, socket, query, unstored)
            except ProxyError as error:
                await socket.send_str(error_message(error.status, error.body()["error"]))
        return socket

    async def _read(self, request: web.Request, raw: bytes, unstored: dict[str, None]) -> _Query:
        """The request in a message; meanwhile its memory is in the account of the connection.

        Raises BadRequest, UnknownPrevious, and as `HeldBytes.hold`."""
        weight = COPIES * len(raw) + await off_loop(len(raw), whole_weight, raw)
        with request[HELD_BYTES].hold(weight):
            body = await off_loop(len(raw), _members, raw)
            previous = body.get("previous_response_id")
            if previous is not None:
                await self._check_previous(request, str(previous), body, unstored)
            content = await off_loop(len(raw), dumps, body)
            return _Query(content, None if previous is None else str(previous), body.get("store") is not False)

    async def _answer(
        self, request: web.Request, socket: web.WebSocketResponse, query: _Query, unstored: dict[str, None]
    ) -> None:
        """Raises BackendBroke."""
        if not query.is_stored and len(unstored) >= MOST_UNSTORED:
            del unstored[next(iter(unstored))]
        writer = EventWriter(socket)
        question = _request(request, writer)

        async def answer(question: web.Request) -> web.StreamResponse:
            question[BODY] = query.content
            question[HELD_BYTES].take_up_to(len(query.content))
            writer.room = room_for(question, self._parts.settings.server.max_body_bytes)
            return await self._relay(question)

        async def admitted(question: web.Request) -> web.StreamResponse:
            return await self._admits(question, answer)

        response = await shape_errors(question, admitted)
        if writer.failure is not None:
            raise writer.failure
        if not response.prepared or writer.body:
            await self._send_whole(socket, response.status, answered_body(response, writer), writer)
        ended = writer.newest.get("response")
        id = ended.get("id") if isinstance(ended, Mapping) else None
        if writer.newest.get("type") in ("response.completed", "response.incomplete") and isinstance(id, str):
            if not query.is_stored:
                unstored[id] = None
        elif query.previous is not None:
            unstored.pop(query.previous, None)  # what failed is begun anew

    @staticmethod
    async def _send_whole(socket: web.WebSocketResponse, status: int, body: bytes, writer: EventWriter) -> None:
        """An answer that is not a stream. Raises BackendBroke."""
        if status not in OK:
            await socket.send_str(refusal(status, body))
            return
        for event in events_of(await off_loop(len(body), response_in, body)):
            writer.newest = event
            await socket.send_str(dumps(event).decode())

    async def _check_previous(
        self, request: web.Request, id: str, body: Mapping[str, Any], unstored: dict[str, None]
    ) -> None:
        """Raises UnknownPrevious for an answer that another connection did not store, BadRequest for the result of a
        call that the earlier answers do not have."""
        head = head_identity(request.headers)
        scope = Scope.of(principal_of(request), head.user or next(iter(head.users), None), head.people)
        completion = await self._previous.find(id, scope)
        if completion is None:
            return  # the relay says so, or the backend knows it
        if completion.request.get("store") is False and id not in unstored:
            raise UnknownPrevious(f"Previous response with id '{id}' not found.", param="previous_response_id")
        messages = [*completion.messages, *([completion.reply] if completion.reply else ())]
        calls = {str(call.get("id")) for message in messages for call in message.get("tool_calls") or ()}
        items = body.get("input")
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, dict):
                continue
            if item.get("type") == "function_call":
                calls.add(str(item.get("call_id")))
            elif item.get("type") == "function_call_output" and str(item.get("call_id")) not in calls:
                unstored.pop(id, None)
                raise BadRequest(
                    f"No tool call found for function call output with call_id {str(item.get('call_id'))[:200]}.",
                    param="input",
                )


def _head_size(size: int) -> int:
    """Bytes of the head of a client's frame of so many bytes (RFC 6455, 5.2)."""
    return 6 if size < 126 else 8 if size < 1 << 16 else 14


def _members(raw: bytes) -> dict[str, Any]:
    """The request in a message. Raises BadRequest."""
    try:
        message = loads(raw)
    except ValueError as error:
        raise BadRequest(f"The message is not valid JSON ({error}).") from None
    if not isinstance(message, dict) or message.get("type") != CREATE:
        raise BadRequest(f"The message must be an object of the type `{CREATE}`.", param="type")
    if message.get("generate") is False:
        raise BadRequest("`generate: false` is not known here: nothing is prepared before a request.", param="generate")
    members = message.get("response") if isinstance(message.get("response"), dict) else message
    assert isinstance(members, dict)
    return {**{name: value for name, value in members.items() if name not in ("type", "generate")}, "stream": True}


def _request(request: web.Request, writer: EventWriter) -> web.Request:
    """A request of this message, with the head of the one that opened the connection."""
    headers = CIMultiDict(request.headers)
    for name in (*_UPGRADE, *(name for name in headers if name.lower().startswith("sec-websocket"))):
        headers.popall(name, None)
    headers["content-type"] = "application/json"
    question = request.clone(method="POST", headers=headers)
    question._payload_writer = writer
    return question
