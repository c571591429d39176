"""An answer of the Responses API where no HTTP response carries it: its events become messages, or it is kept whole.

Owns how such an answer is told apart, by its bytes as everywhere (relay.framing), and how much of it is held. Not here:
the WebSocket (response_socket).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict

from proxy.core.errors import BackendBroke, BackendRefused
from proxy.core.json_edit import dumps, loads_server_json
from proxy.core.offload import off_loop
from proxy.core.sharing.shares import Room
from proxy.core.sse import Event, EventSplitter
from proxy.core.upstream import message_in
from proxy.dialects import RESPONSES
from proxy.relay.answer_room import AnswerRoom
from proxy.relay.early_stream import KEEPALIVE
from proxy.relay.framing import OK, SPLITTERS, Framing, framing_of

_LAST_EVENTS: Final = {"failed": "response.failed", "incomplete": "response.incomplete"}  # by status


class EventWriter(AbstractStreamWriter):
    """Takes an answer in place of a connection: its events become messages, and any other body is kept."""

    def __init__(self, socket: web.WebSocketResponse | None) -> None:
        """`socket`: where the events go; None where all of the answer is kept."""
        self.room: Room | None = None  # for what is kept, and for an event that has not come to its end
        self.body = bytearray()  # of an answer that is not a stream
        self.newest: Mapping[str, Any] = {}  # event
        self.failure: BackendBroke | None = None  # why the rest was dropped
        self._socket = socket
        self._framing = Framing.WHOLE if socket is None else Framing.OPEN
        self._splitter: EventSplitter | None = None

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        """The bytes tell what they are, where they are an answer."""
        if int(status_line.split()[1]) not in OK:
            self._framing = Framing.WHOLE

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Raises BackendBroke where there is no room for it."""
        self.output_size += len(chunk)
        if bytes(chunk) == KEEPALIVE:  # of ours: it says nothing of what follows
            return
        if self._splitter is None:
            self.body += chunk
            self._check(len(self.body))
            self._tell_framing(has_ended=False)
        else:
            await self._send(self._splitter.feed(bytes(chunk)))
            self._check(self._splitter.waiting)
        if self._splitter is not None and self.body:
            await self._send(self._splitter.feed(self._take_body()))

    async def write_eof(self, chunk: bytes = b"") -> None:
        if chunk:
            await self.write(chunk)
        if self._splitter is None:
            self._tell_framing(has_ended=True)
        if self._splitter is not None:
            await self._send(self._splitter.feed(self._take_body()))
            if remainder := self._splitter.remainder():
                await self._send([Event(remainder)])

    async def drain(self) -> None:
        """Messages are drained as they are sent."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        """Messages are not compressed by the answer."""

    def enable_chunking(self) -> None:
        """Each event is a message."""

    def _tell_framing(self, *, has_ended: bool) -> None:
        if self._framing is Framing.OPEN:
            self._framing = framing_of(bytes(self.body), RESPONSES, is_streaming=True, has_ended=has_ended)
            if self._framing in SPLITTERS:
                self._splitter = SPLITTERS[self._framing]()

    def _take_body(self) -> bytes:
        body = bytes(self.body)
        self.body.clear()
        return body

    def _check(self, size: int) -> None:
        """Raises BackendBroke; what was kept is dropped."""
        if self.room is None or self.room.fits(size):
            return
        self.body.clear()
        if self._splitter is not None:
            self._splitter.remainder()
        self.failure = AnswerRoom.error()
        raise self.failure

    async def _send(self, events: list[Event]) -> None:
        """One message an event. What is not JSON could not be read as one, and is left out."""
        for event in events:
            data = event.data
            if data is None or not event.begins_object or self._socket is None:
                continue
            with suppress(ValueError):
                newest = await off_loop(len(data), event.json)
                if isinstance(newest, dict):
                    self.newest = newest
                    await self._socket.send_str(data.decode("utf-8", "replace"))


def answered_body(response: web.StreamResponse, writer: EventWriter) -> bytes:
    """The body of an answer that is not a stream, sent already or not."""
    body = response.body if isinstance(response, web.Response) else b""
    return bytes(writer.body) or (body if isinstance(body, bytes) else b"")


def response_in(body: bytes) -> dict[str, Any]:
    """The response that a server sent as a whole, or as the last event of a stream nobody asked for. Raises
    BackendBroke."""
    with suppress(ValueError):
        response = loads_server_json(body).value
        if isinstance(response, dict) and isinstance(response.get("output"), list):
            return response
    for event in reversed([*(splitter := EventSplitter()).feed(body), Event(splitter.remainder())]):
        with suppress(ValueError):
            response = event.json().get("response") if event.begins_object else None
            if isinstance(response, dict) and isinstance(response.get("output"), list):
                return response
    raise BackendBroke(
        f"The backend's answer is not a response ({body[:200].decode('utf-8', 'replace')!r}); it was not passed on. "
        "Check what answers at backend.url."
    )


def events_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A whole response as the events that tell it: one an item, and the last."""
    kind = _LAST_EVENTS.get(str(response.get("status")), "response.completed")
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**response, "output": []}}]
    items = response["output"]
    events += [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)]
    events.append({"type": kind, "response": response})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def refusal(status: int, body: bytes) -> str:
    """The message of a request that was not answered, in whichever shape the server said so."""
    error: Any = None
    with suppress(ValueError):
        parsed = loads_server_json(body).value
        error = parsed.get("error") if isinstance(parsed, dict) else None
    if not (isinstance(error, dict) and isinstance(error.get("message"), str)):
        error = BackendRefused(status, message_in(body)).body()["error"]
    return error_message(status, error)


def error_message(status: int, error: Mapping[str, Any]) -> str:
    return dumps({"type": "error", "status": status, "error": error}).decode()
