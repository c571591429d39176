"""One request to the backend and its answer: ask, pass on, and leave the completion stored, whatever happens.

Owns the order in which bytes and commits leave, and what happens when either side goes away in the middle. What the
bytes mean belongs to the dialects; how often and in which format the backend is asked, to in_flight. What is stored
is capture's, and which requests come here is relay's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict

from proxy.access.pace import PacedStream, send_pieces
from proxy.core.backend_answer import Answer
from proxy.core.errors import BackendBroke, BackendRefused, BrokeOff, Conflict, ProxyError, UnknownModel, as_broke_off
from proxy.core.json_edit import WholeAnswer, dumps
from proxy.core.ndjson import Line, NdjsonSplitter
from proxy.core.offload import LARGE, in_thread, off_loop
from proxy.core.sse import Event, EventSplitter, read_all
from proxy.core.upstream import MOST_SHORT, answer_headers, message_in, read_short, splitter_for
from proxy.dialects import CHAT
from proxy.dialects.base import ODD, OutgoingRequest
from proxy.dialects.chat import chat_body
from proxy.relay.answer_room import AnswerRoom
from proxy.relay.capture.answer_reader import TOO_LONG, AnswerReader, read_stream
from proxy.relay.capture.capture import Capture
from proxy.relay.capture.pending_record import MakesRow
from proxy.relay.codecs import Codec, Translated
from proxy.relay.context import RequestContext
from proxy.relay.early_stream import KEEPALIVE
from proxy.relay.framing import OK, is_whole, splitter_of
from proxy.relay.in_flight import InFlightRequest
from proxy.relay.lessons import HEADER as LESSONS
from proxy.relay.parts import RelayParts
from proxy.relay.request_body import room_for
from proxy.relay.unknown_model import unknown_model
from store.errors import DuplicateCompletion
from store.records import NewCompletion, PromptLesson, Status

log = structlog.get_logger()

CLIENT_ERRORS: Final = (aiohttp.ClientConnectionResetError, ConnectionResetError, BrokenPipeError)
CLIENT_LEFT: Final = "the client went away"
LEFT_OUT: Final = "x-rl-left-out"
NOT_THEIRS: Final = frozenset({"content-length", "content-encoding"})  # of an answer that is read here
LONG: Final = 1 << 14  # bytes of a question
KEEPALIVE_S = 3.0  # of silence; proxies and clients in between give up sooner or later


class Exchange:
    """One request to the backend and its answer."""

    def __init__(
        self,
        parts: RelayParts,
        context: RequestContext,
        outgoing: OutgoingRequest,
        make_row: MakesRow,
        taught: Sequence[PromptLesson] = (),
    ) -> None:
        """`make_row` makes the row of what is captured; `taught`: lessons in the prompt."""
        self._parts = parts
        self._context = context
        self._request = context.request
        self._keepable = partial(parts.keepable, context.request, context.server)
        self._dialect = context.dialect
        self._outgoing = outgoing
        self._parsed = outgoing.parsed
        self._taught = taught
        self._attempt = context.attempt  # keeps the answer, should its SDK ask again
        # The stream, once it has begun: at once, where its client was held while it waited.
        self._response = context.stream.response if context.stream is not None else None
        self._capture: Capture | None = None
        self._make_row = make_row
        self._codec: Codec  # once the answer begins
        self._finished = False
        self._upstream: Answer  # once it has begun
        self._last = b""  # what leaves with the end of the stream
        self._gap = b""  # what ends the last event, where the backend did not
        self._room = AnswerRoom(context.request, parts.settings.server)
        self._is_raw = False  # its bytes go through unread

    async def begin(self) -> None:
        """Store the row under the id that its client chose. Raises Conflict where that exists."""
        self._capture = self._new_capture()
        try:
            row = self._make_row()
            row = row if isinstance(row, NewCompletion) else await row
            await self._capture.begin(row)
        except DuplicateCompletion:
            self._capture = None
            raise Conflict(
                f"The completion id {self._context.id} exists already; choose another.", param="x-rl-completion-id"
            ) from None
        except asyncio.CancelledError:
            self._finish_later(self._given_up(self._capture))
            raise

    async def _given_up(self, capture: Capture) -> None:
        if await capture.given_up(CLIENT_LEFT) and self._attempt is not None:
            self._attempt.completion = capture.id  # its retry may have the same id

    def _new_capture(self) -> Capture:
        context, room = self._context, self._room.record
        assert context.id is not None
        keepable, backend = self._keepable, context.server.backend
        capture = self._parts.capture(context.id, self._parsed, self._dialect, keepable, backend, room)
        capture.requester, capture.trace = context.requester, context.trace
        return capture

    def _follow(self) -> None:
        """Begin the record, now that the question is on its way."""
        if self._capture is None and self._context.id is not None:
            self._capture = self._new_capture()
            # Nobody waits for a first byte of it, or its server reads it for longer than the record takes.
            at_once = not self._parsed.stream or self._outgoing.size >= LONG
            self._capture.follow(self._parts.tasks, self._make_row, at_once=at_once)

    async def run(self) -> web.StreamResponse:
        """Ask, pass the answer on, and leave the completion stored, whatever happens."""
        error: str | None = None
        self._in_flight = InFlightRequest(self._parts, self._context, self._outgoing, self._follow)
        try:
            self._upstream = upstream = await self._in_flight.ask()
            self._codec = self._in_flight.codec
            if self._capture is not None:
                self._capture.reader.dialect = self._codec.reads
                self._capture.source.translated = self._codec.translated
                self._capture.source.withheld = self._in_flight.withheld
            try:
                return await self._answer(upstream)
            finally:
                self._context.trace.note_answered()
                upstream.close()  # a reply nobody reads any more must stop costing the backend
        except ProxyError as failure:
            error = failure.message
            raise
        except (asyncio.CancelledError, *CLIENT_ERRORS):
            error = CLIENT_LEFT
            raise
        except Exception as fault:  # of ours; its words may be somebody's, and go to the log alone
            error = f"rlproxy failed while it answered ({type(fault).__name__}); its log says where."
            raise
        finally:
            self._follow()  # also of a question that nobody took
            self._in_flight.leave()
            del self._in_flight  # it knows this exchange: what no cycle holds needs no collector
            self._parts.memory.used(self._outgoing.size)
            if self._capture is not None and not self._finished:
                status: Status = "partial" if error == CLIENT_LEFT else "error"
                self._finish_later(self._stored(self._capture, status, error))

    def _finish_later(self, work: Coroutine[Any, Any, None]) -> None:
        """In a task of its own: this one may have been cancelled."""
        self._context.trace.finishing = finishing = self._parts.tasks.spawn(f"finish-{self._context.id}", work)
        if self._attempt is not None:
            self._attempt.finishing = finishing

    def _headers(self, upstream: Answer) -> CIMultiDict[str]:
        headers = answer_headers(upstream.headers, NOT_THEIRS)
        if self._capture is not None:
            headers["x-rl-completion-id"] = self._capture.id
        headers.update(self._context.answered_by())
        if self._taught and (ratings := ", ".join(lesson.rating for lesson in self._taught if not lesson.left_out)):
            headers[LESSONS] = ratings
        if self._codec.left_out:
            headers[LEFT_OUT] = ", ".join(self._codec.left_out)
        self._parts.metrics.overhead.observe(overhead := self._context.trace.overhead(self._context.started))
        headers["x-rl-overhead-ms"] = f"{overhead * 1000:.2f}"
        headers["x-accel-buffering"] = "no"
        return headers

    async def _answer(self, upstream: Answer) -> web.StreamResponse:
        """Pass the answer on in the form in which it comes."""
        if upstream.status not in OK:
            return await self._refused(upstream)
        streams = self._parsed.stream
        stream = self._response
        if streams and stream is None and splitter_for(upstream) is not None:
            self._response = await self._begin(upstream)  # its client waits for no first event
        splitter = await splitter_of(upstream, self._codec.reads, KEEPALIVE_S, self._beat, is_streaming=streams)
        if splitter is None and stream is not None and not self._codec.translated:
            raise BackendBroke("The backend answered in one piece where a stream was asked for.")
        if splitter is None and (self._response is not None or (streams and self._codec.translated)):
            return await self._whole_as_stream(upstream)
        if splitter is not None:
            is_gathered = self._codec.translated and not streams
            return await (self._stream_as_whole if is_gathered else self._stream)(upstream, splitter)
        if (body := await self._room.body(upstream)) is None:
            return await self._pass_uncaptured(upstream)
        return await self._whole(upstream, WholeAnswer(body))

    async def _beat(self) -> None:
        """Nothing has come for a while."""
        if self._response is not None and self._dialect.framing == "sse":
            await self._response.write(KEEPALIVE)

    async def _refused(self, upstream: Answer) -> web.StreamResponse:
        body = self._in_flight.refusal or await read_short(upstream, room_for(self._request, MOST_SHORT))
        reason = await off_loop(len(body), message_in, body)
        unknown = await self._unknown_model(reason) if upstream.status == 404 else None
        refusal = unknown or BackendRefused(upstream.status, reason)
        if self._response is not None:
            raise refusal
        headers = self._headers(upstream)
        message = self._keepable(body.decode("utf-8", "replace"))[:300]  # in this order: half a key is one too
        await self._finish("error", error=f"the backend answered {upstream.status}: {message!r}")
        if unknown or self._codec.translated:
            body = dumps(self._dialect.error(refusal))
            headers["content-type"] = "application/json"
        return web.Response(status=upstream.status, body=body, headers=headers)

    async def _whole(self, upstream: Answer, answer: WholeAnswer, *, is_read: bool = False) -> web.Response:
        """`is_read`: for the store, too."""
        headers = self._headers(upstream)
        if self._codec.translated:
            headers["content-type"] = "application/json"
        elif answer.raw.startswith(b"{"):
            headers.setdefault("content-type", "application/json")
        if not is_read:
            await self._take_whole(answer)
        try:
            output = await off_loop(len(answer.raw), self._codec.whole, answer)
        except BackendBroke as error:
            await self._finish("error", error=error.message)
            raise
        await self._finish("done")
        return web.Response(status=upstream.status, body=output, headers=headers)

    async def _whole_as_stream(self, upstream: Answer) -> web.StreamResponse:
        """A plain answer, where its client reads a stream."""
        response = self._response or await self._begin(upstream)
        try:
            if (body := await self._room.body(upstream)) is None:
                return await self._pass_uncaptured(upstream)
            answer = WholeAnswer(body)
            await self._take_whole(answer)
            output, last = await off_loop(len(body), self._codec.whole_as_stream, answer)
            await response.write(output)
            await self._finish("done")
            self._note_end()
            self._last = last
        except BackendBroke as error:
            await self._broken_off(response, error, "error")
        await response.write_eof(self._last)
        return response

    async def _take_whole(self, answer: WholeAnswer) -> None:
        """Have a plain answer read for the store."""
        if self._reader is not None:
            await off_loop(len(answer.raw), self._reader.take_whole, answer)

    async def _stream_as_whole(self, upstream: Answer, splitter: EventSplitter) -> web.Response:
        """A stream, where its client reads a plain answer. Raises BackendBroke."""
        reader = self._reader or AnswerReader(CHAT, self._parsed.tools, self._room.record, self._parsed.n)
        replies = await read_stream(reader, upstream, splitter, self._room)
        return await self._whole(upstream, WholeAnswer(dumps(chat_body(replies))), is_read=True)

    async def _pass_uncaptured(self, upstream: Answer) -> web.StreamResponse:
        """Pass on a plain answer that is too long to be read here, as its backend sends it. Nothing of it is kept.
        Raises BackendBroke where it has to be said in another format."""
        if self._codec.translated:
            raise self._room.error()
        await self._let_go()
        response = self._response or PacedStream(headers=self._headers(upstream))
        await send_pieces(response, self._request, self._room.pieces(upstream))
        return response

    async def _let_go(self) -> None:
        """Keep nothing of this answer, which goes on to its client."""
        if self._capture is not None:
            self._capture.reader.let_go(TOO_LONG)
        await self._finish("done")

    async def _unknown_model(self, reason: str) -> UnknownModel | None:
        assert self._in_flight.address is not None
        url, message = self._in_flight.address.url, self._keepable(reason)[:300]
        return await unknown_model(self._context.server.backend, url, self._context.wanted_model, message)

    async def _begin(self, upstream: Answer, splitter: EventSplitter | None = None) -> web.StreamResponse:
        """The head of a stream."""
        headers = self._headers(upstream)
        if isinstance(self._codec, Translated):
            headers["content-type"] = self._codec.content_type
        is_lines = isinstance(splitter, NdjsonSplitter)
        headers.setdefault("content-type", "application/x-ndjson" if is_lines else "text/event-stream")
        stream = PacedStream if self._attempt is None else self._attempt.stream
        response = stream(status=upstream.status, headers=headers)
        await response.prepare(self._request)
        return response

    async def _stream(self, upstream: Answer, splitter: EventSplitter) -> web.StreamResponse:
        response = self._response or await self._begin(upstream, splitter)
        events = self._codec.translated or not isinstance(splitter, NdjsonSplitter)  # else a comment would be no line
        alive = self._parsed.stream and self._dialect.framing == "sse" and events
        broke: BrokeOff | None = None
        half: Event | None = None
        try:
            try:
                while (chunk := await upstream.some(KEEPALIVE_S)) != b"":
                    if chunk is not None:
                        await self._pass_on(response, splitter, chunk)
                    elif alive and not self._finished:  # only whole events are written, so this is always between two
                        await response.write(KEEPALIVE)
            except BrokeOff as error:
                if self._is_raw and self._request.transport is not None:
                    self._request.transport.close()  # there is no place in these bytes for an error of ours
                    return response
                broke = error
            half = await self._pass_remainder(response, splitter)
            if broke is not None and not self._finished and self._failed is None:
                raise broke
            self._fold(*([] if half is None else [half]))
            output = b"" if half is None else self._rendered(half)
            if not self._finished:
                await self._ended_without_terminal(response)
            self._last += output
        except BackendBroke as error:
            await self._broken_off(response, error)
            # An error event has to follow whole ones; a client that reads none gets every byte, and sees the break.
            if not (self._parsed.stream or self._codec.translated):
                self._last += half.raw if half is not None else b""
                if broke is not None and self._request.transport is not None:
                    await response.write(self._last)
                    self._request.transport.close()
                    return response
        await response.write_eof(self._last)
        return response

    async def _pass_remainder(self, response: web.StreamResponse, splitter: EventSplitter) -> Event | None:
        """The rest after the last blank line. Half an event is handed back: where an error of ours has to follow, it
        is left out, or no client could read the error."""
        if not (remainder := splitter.remainder()):
            return None
        if self._last:
            await response.write(self._last)
            self._last = b""
        line = isinstance(splitter, NdjsonSplitter)
        event = Line(remainder) if line else Event(remainder)
        if self._codec.reads.terminal(event) or is_whole(event):
            await self._pass(response, [event])
            self._gap = b"" if self._codec.translated else b"\n" if line else b"\n\n"
            return None
        return event

    async def _pass_on(self, response: web.StreamResponse, splitter: EventSplitter, chunk: bytes) -> None:
        """The bytes of one read. Whole events go through at once, up to the first that may be the last one."""
        self._context.trace.note_chunk()
        piece = chunk if self._is_raw else splitter.whole(chunk)
        if self._is_raw or not self._room.fits(splitter, piece):
            await self._pass_raw(response, splitter, piece)
            return
        if splitter.is_plain and not self._finished and len(piece) < LARGE:
            head = piece[: self._codec.reads.before_the_end(piece, splitter.gap)]
            if head and (output := self._through(splitter, head)):
                await response.write(output)
                piece = piece[len(head) :]
        if piece:
            events = splitter.events(piece)
            if len(piece) >= LARGE:
                await in_thread(read_all, events)
            await self._pass(response, events)
            if self._codec.translated and not self._room.backlog.fits(self._codec.backlog):
                raise self._room.error()

    async def _pass_raw(self, response: web.StreamResponse, splitter: EventSplitter, piece: bytes) -> None:
        """From here on the bytes of the stream go through as they are: an event is too long to be looked at. Raises
        BackendBroke where they have to be said in another format."""
        if self._codec.translated:
            raise self._room.error()
        if not self._is_raw:
            self._is_raw = True
            await self._let_go()
        for part in filter(None, (self._last + piece, splitter.remainder())):
            await response.write(part)
        self._last = b""
        self._room.end()

    def _through(self, splitter: EventSplitter, piece: bytes) -> bytes | None:
        """Whole events as the client gets them, noted for the capture; None where each has to be looked at."""
        output = self._codec.through(piece)
        if output is not None:
            if self._capture is not None:
                self._capture.reader.keep(piece, splitter)
            return output
        parsed = splitter.objects(piece)
        output = None if parsed is None else self._codec.edited(piece, parsed)
        if output is not None and parsed is not None and self._capture is not None:
            self._capture.reader.take(parsed, len(piece))
        return output

    async def _pass(self, response: web.StreamResponse, events: list[Event]) -> None:
        """Send what the client waits for first; then fold it."""
        out, passed = bytearray(), []
        try:
            for event in events:
                if self._codec.translated and self._finished:
                    return  # the client has had its end
                if not self._codec.reads.terminal(event):
                    passed.append(event)
                    out += self._rendered(event)
                    continue
                self._fold(*passed, event)
                passed.clear()
                output, last = self._end(event)
                if out or output:
                    await response.write(bytes(out + output))
                    out.clear()
                await self._finish("done")
                self._note_end()
                if self._upstream.is_read and event is events[-1]:
                    self._last = last
                else:
                    out += last
        finally:
            try:
                if out:  # also where a later event of the same piece broke the stream
                    await response.write(bytes(out))
            finally:
                self._fold(*passed)

    def _rendered(self, event: Event) -> bytes:
        try:
            return self._codec.event(event)
        except ODD as error:
            raise BackendBroke(f"The backend's answer is not a chat completion ({error!r}).") from error

    def _end(self, event: Event | None) -> tuple[bytes, bytes]:
        try:
            return self._codec.end(event)
        except ODD as error:
            raise BackendBroke(f"The backend's answer makes no chat completion ({error!r}).") from error

    def _fold(self, *events: Event) -> None:
        if self._capture is None or self._finished:
            return
        for event in events:
            self._capture.reader.add(event)

    async def _ended_without_terminal(self, response: web.StreamResponse) -> None:
        """Some servers just close. With a finish reason for every choice the answer is whole all the same."""
        reader = self._reader
        if not self._codec.translated and (reader is None or reader.has_let_go):
            await self._finish("done")
            return
        if (failed := self._failed) is not None:
            await self._finish("error", error=failed)  # its own word has been passed on
            return
        replies = reader.replies() if reader is not None else []
        if reader is not None and not (len(replies) == self._parsed.n and all(r.finish_reason for r in replies)):
            raise as_broke_off(None)
        output, last = self._end(None)
        await response.write(output)
        await self._finish("done")
        self._note_end()
        self._last = last

    @property
    def _failed(self) -> str | None:
        """Why the backend gave up, where it said so inside its stream."""
        return self._reader.failed if self._reader is not None else None

    @property
    def _reader(self) -> AnswerReader | None:
        return None if self._capture is None else self._capture.reader

    def _note_end(self) -> None:
        """Note that the next write is the last. A client that goes before it has that may ask for it again."""
        if self._attempt is not None and self._failed is None:
            self._attempt.streamed()

    async def _broken_off(self, response: web.StreamResponse, error: ProxyError, status: Status = "partial") -> None:
        already, failed = self._finished, self._failed
        await self._finish(status if failed is None else "error", error=failed or error.message)
        # Else its own word has been passed on, or its client reads no events.
        if not already and self._parsed.stream and (failed is None or self._codec.translated):
            await response.write(self._gap + self._codec.broken(error))

    async def _finish(self, status: Status, *, error: str | None = None) -> None:
        if self._finished:
            return
        self._finished = True
        if self._capture is not None:
            self._capture.source.finished_at = self._codec.completed_at
            await self._stored(self._capture, status, error)

    async def _stored(self, capture: Capture, status: Status, error: str | None) -> None:
        """Store what came. An answer that the backend goes on with in the background stays open."""
        open_id = capture.reader.open_id
        if open_id is not None and (status == "done" or self._outgoing.body.get("background") is True):
            await capture.leave_open(open_id)
        else:
            await capture.finish(status, error=error)
