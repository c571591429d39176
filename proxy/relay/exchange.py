"""One request to the backend and its answer: ask, pass on, and leave the completion stored, whatever happens.

Owns the order in which bytes and commits leave, and what happens when either side goes away in the middle. What the
bytes mean belongs to the dialects, in which of them the backend is asked to ways, what is stored to capture, which
requests come here to relay.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from config.settings import Settings
from proxy.access.limits import Limits, PacedStream
from proxy.access.security import outgoing_headers, without_keys
from proxy.access.unknown_route import MISSING
from proxy.backends.ask import down
from proxy.backends.base import Address, Backend, place_for
from proxy.conversation.active_conversations import Recent
from proxy.conversation.capture_health import Health
from proxy.conversation.redaction import Redactor
from proxy.conversation.retries import Attempt
from proxy.conversation.underway import Underway
from proxy.core.errors import BackendBroke, BackendRefused, BrokeOff, Conflict, ProxyError, UnknownModel
from proxy.core.events import Events
from proxy.core.heap_trim import Memory
from proxy.core.json_edit import Rules, WholeAnswer, dumps, loads
from proxy.core.metrics import Metrics
from proxy.core.ndjson import Line, NdjsonSplitter
from proxy.core.offload import LARGE, off_loop
from proxy.core.sse import Event, EventSplitter
from proxy.core.tasks import Tasks
from proxy.core.upstream import chunks, cut, end_to_end, message_in, no_http, splitter_for, upstream_url, whole
from proxy.dialects import CHAT, Dialect
from proxy.dialects.base import ODD, Question
from proxy.feedback.episodes import Episodes
from proxy.relay.capture import Capture, new_id
from proxy.relay.capture_optout import Uncaptured
from proxy.relay.codecs import Codec, Native, Translated, wishes
from proxy.relay.dialect_support import Formats, about_what_was_asked
from proxy.relay.early_stream import KEEPALIVE, HeldStream
from proxy.relay.unknown_model import unknown_model
from proxy.training.giving_way import GivingWay
from proxy.versions.admission import Door
from proxy.versions.live_version import Lease, Swap
from store.errors import DuplicateCompletion
from store.records import NewCompletion
from store.store import Store

log = structlog.get_logger()

GONE: Final = (aiohttp.ClientConnectionResetError, ConnectionResetError, BrokenPipeError)
NOTICED_S: Final = 0.25  # in which the end of a process of ours is seen, after its port has closed
RESTARTED_S: Final = 10.0  # in which a server that broke off has to answer again, or a question is not asked once more
KEEPALIVE_S = 3.0  # of silence; proxies and clients in between give up sooner or later


@dataclass
class Parts:
    """What an exchange works with; the same for all of them."""

    settings: Settings
    store: Store
    backend: Backend
    swap: Swap
    metrics: Metrics
    tasks: Tasks
    health: Health
    formats: Formats
    door: Door
    limits: Limits
    events: Events
    redactor: Redactor
    uncaptured: Uncaptured
    recent: Recent
    memory: Memory
    giving_way: GivingWay
    underway: Underway
    episodes: Episodes
    http: aiohttp.ClientSession | None = None  # set at start-up, when there is a loop

    def request_headers(self, request: web.Request) -> CIMultiDict[str]:
        return outgoing_headers(
            end_to_end(request.headers), settings=self.settings.server, backend=self.backend.headers()
        )


class Exchange:
    """One request to the backend and its answer."""

    def __init__(
        self,
        parts: Parts,
        request: web.Request,
        dialect: Dialect,
        question: Question,
        lease: Lease,
        started: float,
        attempt: Attempt | None = None,
        held: HeldStream | None = None,
    ) -> None:
        self._parts = parts
        self._request = request
        self._dialect = dialect
        self._question = question
        self._asked = question.asked
        self._lease = lease
        self._started = started
        self._attempt = attempt  # keeps the answer, should its SDK ask again
        self._begun = held.response if held is not None else None  # the stream, where it began while it waited
        self._capture: Capture | None = None
        self._way: Codec
        self._refusal = b""  # a 404 that was read to see what it is about
        self._finished = False
        self._gap = b""  # what ends the last event, where the backend did not
        self._address: Address | None = None  # where the question is
        self._taken = 0  # how many servers may have taken the question and broke off without a word
        self._overhead_ms = 0.0

    async def capture_as(
        self, id: str, row: Callable[[], Awaitable[NewCompletion]], seen: Callable[[NewCompletion], None]
    ) -> None:
        """Raises Conflict where the client chose an id that exists. Else the row is made while the backend is asked;
        `seen` is told of it."""
        parts = self._parts
        await parts.store.room()  # who comes while the disk is behind waits here, and takes no more memory than that
        self._capture = Capture(
            parts.store,
            parts.metrics,
            parts.health,
            parts.events,
            parts.redactor,
            parts.underway,
            id,
            self._asked.n,
            self._keepable,
        )
        self._capture.guessed = parts.backend.served.guessed(self._asked.sampling)
        if "x-rl-completion-id" not in self._request.headers:
            self._capture.begin_beside(parts.tasks, row, seen)
            return
        try:
            await self._capture.begin(await row(), seen)
        except DuplicateCompletion:
            self._capture = None
            raise Conflict(
                f"The completion id {id} exists already; choose another.", param="x-rl-completion-id"
            ) from None

    async def run(self) -> web.StreamResponse:
        """Ask, pass the answer on, and leave the completion stored, whatever happens."""
        error: str | None = None
        try:
            upstream = await self._ask()
            try:
                splitter = splitter_for(upstream)
                if splitter is not None and upstream.status == 200:
                    return await self._stream(upstream, splitter)
                return await self._whole(upstream)
            finally:
                upstream.close()  # a reply nobody reads any more must stop costing the backend
        except ProxyError as failed:
            error = failed.message
            raise
        except (asyncio.CancelledError, *GONE):
            error = "the client went away"
            raise
        finally:
            self._leave()
            self._parts.memory.used(self._question.size)
            if self._capture is not None and not self._finished:
                status = "partial" if error == "the client went away" else "error"
                # In a task of its own: this one may have been cancelled.
                finishing = self._parts.tasks.spawn(
                    f"finish-{self._capture.id}",
                    self._capture.finish(status, error=error),  # type: ignore[arg-type]
                )
                if self._attempt is not None:
                    self._attempt.finishing = finishing

    # Asking

    async def _go(self, *, translated: bool) -> None:
        """Choose the way. Raises BadRequest for what chat completions cannot say."""
        question = self._question
        capabilities = self._parts.backend.capabilities
        if translated:
            self._way = await off_loop(
                max(question.size, question.weight),
                Translated,
                self._dialect,
                question,
                capabilities,
                id=self._capture.id if self._capture else new_id(),
                model=self._asked.model or self._parts.swap.model,
                created=int(time.time()),
            )
        else:
            self._way = Native(self._dialect, question, capabilities, self._rules())
        if self._capture is not None:
            self._capture.reads(self._way.reads, translated=translated)

    async def _ask(self) -> aiohttp.ClientResponse:
        """In the client's dialect if the backend has it, else as chat completions."""
        formats, name = self._parts.formats, self._dialect.name
        if not formats.native(name):
            await self._go(translated=True)
            return await self._ask_once()
        await self._go(translated=False)
        upstream = await self._ask_once()
        if upstream.status not in MISSING or self._dialect is CHAT or formats.shown(name):
            if upstream.status == 200:
                formats.has(name)
            return upstream
        refusal = await whole(upstream)
        if about_what_was_asked(refusal, self._asked.model, self._dialect.paths[0]):
            self._refusal = refusal
            return upstream
        # No such route, or no such model: if it answers in chat completions, it was the route.
        await self._go(translated=True)
        upstream = await self._ask_once()
        if upstream.status not in MISSING:
            formats.lacks(name)
            log.info("backend lacks a dialect; it is translated from now on", dialect=name)
        return upstream

    async def _ask_once(self) -> aiohttp.ClientResponse:
        """Once more where the backend had lost the adapter, or refuses what only we asked for."""
        asking = self._capture is not None
        upstream = await self._send(asking)
        version = self._lease.version
        if upstream.status in self._parts.backend.capabilities.lost and version:
            await whole(upstream)
            await self._parts.swap.lost(version)
            upstream = await self._send(asking)
        if upstream.status == 400 and asking and self._way.asks:
            await whole(upstream)
            upstream = await self._send(False)
        return upstream

    async def _send(self, asking: bool) -> aiohttp.ClientResponse:
        parts = self._parts
        headers = parts.request_headers(self._request)
        headers.popall("content-encoding", None)  # it was undone when we read the body
        headers["accept-encoding"] = "identity"  # the answer has to be read here
        headers["content-type"] = "application/json"
        for last_place in (False, True):  # not every one of them: it may be the question that ends a server
            self._leave()  # an earlier question of this request
            self._address = address = parts.backend.address(self._lease.model)
            heavy = max(self._question.size, self._question.weight)
            body = await off_loop(heavy, self._way.body, address.members, asking=asking)
            overhead = time.perf_counter() - self._started
            parts.metrics.overhead.observe(overhead)
            self._overhead_ms = overhead * 1000
            try:
                return await self._post(address.url, body, headers)
            except aiohttp.SocketTimeoutError as error:  # it took the question and is silent: another would be, too
                raise down(address.url, error, parts.backend.kind) from error
            except aiohttp.ClientResponseError as error:
                raise no_http(error) from error
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                parts.health.files.check(error)
                elsewhere = parts.backend.elsewhere(address)
                if last_place or not (elsewhere or await self._is_back(error)):
                    raise down(address.url, error, parts.backend.kind) from error
        raise AssertionError("unreachable")

    async def _is_back(self, error: Exception) -> bool:
        """Whether to ask once more. Raises BackendDown where a server of ours does not come back.

        Where nobody took the question: after the time that a server of ours takes to start again. Where one may have
        taken it, but not a byte of an answer came: once, if somebody answers there again soon. It may have been the
        question that ended the server, so never a second time; and not where each answer has its price.
        """
        if isinstance(error, aiohttp.ClientConnectorError):
            await asyncio.sleep(NOTICED_S)  # in which a server of ours is seen to have ended
            await self._parts.backend.ready()
            return True
        foreign = self._parts.backend.capabilities.foreign
        return not foreign and self._taken == 1 and await self._answers_again()

    async def _answers_again(self) -> bool:
        try:
            async with asyncio.timeout(RESTARTED_S):
                await asyncio.sleep(NOTICED_S)
                while not await self._is_well():
                    await asyncio.sleep(NOTICED_S)
        except TimeoutError:
            return False
        log.warning(
            "a question whose server broke off is asked once more", completion=self._capture and self._capture.id
        )
        return True

    async def _is_well(self) -> bool:
        parts = self._parts
        assert parts.http is not None
        try:
            await parts.backend.ready()
            with place_for(parts.backend, self._lease.model) as address:
                async with parts.http.get(f"{address.url}/v1/models", headers=parts.backend.headers()) as response:
                    return response.status < 500
        except (ProxyError, aiohttp.ClientError, OSError):
            return False

    async def _post(self, url: str, body: bytes, headers: CIMultiDict[str]) -> aiohttp.ClientResponse:
        """Twice where a connection that was kept open had just been closed."""
        parts = self._parts
        assert parts.http is not None
        path = self._way.path
        target = upstream_url(url, self._request) if path is None else URL(url + path)
        closed: aiohttp.ServerDisconnectedError | None = None
        for last_try in (False, True):
            try:
                return await parts.http.post(
                    target, data=_sendable(body), headers=headers, allow_redirects=False, auto_decompress=True
                )
            except aiohttp.ServerDisconnectedError as error:
                self._taken += 1
                if last_try or self._taken > 1:
                    raise
                closed = error
            except aiohttp.ClientConnectorError:
                if closed is not None:  # whoever closed the first one may have taken the question, and died of it
                    raise closed from None
                raise
            except (aiohttp.ClientOSError, ConnectionResetError):
                self._taken += 1
                raise
        raise AssertionError("unreachable")

    def _leave(self) -> None:
        if self._address is not None:
            self._parts.backend.ended(self._address)
            self._address = None

    # Answering

    def _headers(self, upstream: aiohttp.ClientResponse) -> CIMultiDict[str]:
        headers = end_to_end(upstream.headers)
        for name in ("content-length", "content-encoding", "x-request-id"):
            headers.popall(name, None)
        if self._capture is not None:
            headers["x-rl-completion-id"] = self._capture.id
        headers["x-rl-adapter"] = self._lease.label
        headers["x-rl-overhead-ms"] = f"{self._overhead_ms:.2f}"
        headers["x-accel-buffering"] = "no"
        return headers

    def _rules(self) -> Rules:
        """The client sees the model it asked for; an adapter's own name stays between us and the backend."""
        model = self._asked.model if self._lease.version is not None and self._asked.model else None
        if self._capture is None:
            return {"model": dumps(model)} if model else {}
        asked = self._asked
        ours = bool(wishes(self._dialect, self._question, self._parts.backend.capabilities))
        return self._dialect.rules(id=self._capture.id, model=model, asked=asked, ours=ours)

    async def _whole(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        answer = WholeAnswer(body := self._refusal or await whole(upstream))
        headers = self._headers(upstream)
        unknown = await self._unknown_model(body) if upstream.status == 404 else None
        if self._begun is not None:
            if upstream.status != 200:
                raise unknown or BackendRefused(upstream.status, message_in(body))
            raise BackendBroke("The backend answered in one piece where a stream was asked for.")
        if upstream.status != 200:
            told = self._keepable(body.decode("utf-8", "replace"))[:300]  # in this order: half a key is one too
            await self._finish("error", error=f"the backend answered {upstream.status}: {told!r}")
            if unknown or self._way.translated:
                body = dumps(self._dialect.error(unknown or BackendRefused(upstream.status, message_in(body))))
                headers["content-type"] = "application/json"
            return web.Response(status=upstream.status, body=body, headers=headers)
        if self._way.translated:
            if self._asked.stream:
                raise BackendBroke("The backend answered in one piece where a stream was asked for.")
            headers["content-type"] = "application/json"
        try:
            said = self._way.whole(answer)
        except BackendBroke as error:
            await self._finish("error", whole=answer, error=error.message)
            raise
        await self._finish("done", whole=answer)
        return web.Response(status=upstream.status, body=said, headers=headers)

    async def _unknown_model(self, body: bytes) -> UnknownModel | None:
        assert self._address is not None
        said = self._keepable(message_in(body))[:300]
        return await unknown_model(self._parts.backend, self._address.url, self._asked.model, said)

    async def _stream(self, upstream: aiohttp.ClientResponse, splitter: EventSplitter) -> web.StreamResponse:
        response = self._begun
        if response is None:
            headers = self._headers(upstream)
            if isinstance(self._way, Translated):
                headers["content-type"] = self._way.content_type
            stream = PacedStream if self._attempt is None else self._attempt.stream
            response = stream(status=upstream.status, headers=headers)
            await response.prepare(self._request)
        alive = self._dialect.framing == "sse"
        broke: BrokeOff | None = None
        try:
            try:
                async for chunk in chunks(upstream, KEEPALIVE_S):
                    if chunk is not None:
                        await self._pass_on(response, splitter, chunk)
                    elif alive:  # only whole events are written, so this is always between two
                        await response.write(KEEPALIVE)
            except BrokeOff as error:
                broke = error
            half = await self._rest(response, splitter)
            if broke is not None and not self._finished and self._failed is None:
                raise broke
            said = self._seen(half) if half is not None else b""
            if not self._finished:
                await self._ended_without_terminal(response)
            if said:
                await response.write(said)
        except BackendBroke as error:
            await self._broken_off(response, error)
        await response.write_eof()
        return response

    async def _rest(self, response: web.StreamResponse, splitter: EventSplitter) -> Event | None:
        """What came after the last blank line. Half an event is handed back: where an error of ours has to follow, it
        is left out, or no client could read the error."""
        if not (rest := splitter.rest()):
            return None
        line = isinstance(splitter, NdjsonSplitter)
        event = Line(rest) if line else Event(rest)
        if self._way.reads.terminal(event) or _is_whole(event):
            await self._pass(response, [event])
            self._gap = b"" if self._way.translated else b"\n" if line else b"\n\n"
            return None
        return event

    async def _pass_on(self, response: web.StreamResponse, splitter: EventSplitter, chunk: bytes) -> None:
        """What one read brought. Whole events go through at once, up to the first that may be the last one."""
        piece = splitter.whole(chunk)
        if splitter.is_plain and not self._finished:
            head = piece[: self._way.reads.before_the_end(piece, splitter.gap)]
            if head and (said := self._through(splitter, head)):
                await response.write(said)
                piece = piece[len(head) :]
        if piece:
            await self._pass(response, splitter.events(piece))

    def _through(self, splitter: EventSplitter, piece: bytes) -> bytes | None:
        """Whole events as the client gets them, noted for the capture; None where each has to be looked at."""
        said = self._way.through(piece)
        if said is not None:
            if self._capture is not None:
                self._capture.keep(piece, splitter)
            return said
        parsed = splitter.objects(piece)
        said = None if parsed is None else self._way.edited(piece, parsed)
        if said is not None and parsed is not None and self._capture is not None:
            self._capture.take(parsed)
        return said

    async def _pass(self, response: web.StreamResponse, events: list[Event]) -> None:
        """What the client waits for leaves first; then it is folded."""
        out, passed = bytearray(), []
        try:
            for event in events:
                if self._way.translated and self._finished:
                    return  # the client has had its end
                if not self._way.reads.terminal(event):
                    passed.append(event)
                    out += self._said(event)
                    continue
                self._fold(*passed, event)
                passed.clear()
                before, last = self._end(event)
                if out or before:
                    await response.write(bytes(out + before))
                    out.clear()
                await self._finish("done")
                self._said_all()
                out += last
        finally:
            try:
                if out:  # also where a later event of the same piece broke the stream
                    await response.write(bytes(out))
            finally:
                self._fold(*passed)

    def _seen(self, event: Event) -> bytes:
        self._fold(event)
        return self._said(event)

    def _said(self, event: Event) -> bytes:
        try:
            return self._way.event(event)
        except ODD as error:
            raise BackendBroke(f"The backend sent what is no chat completion ({error!r}).") from error

    def _end(self, event: Event | None) -> tuple[bytes, bytes]:
        try:
            return self._way.end(event)
        except ODD as error:
            raise BackendBroke(f"The backend's answer makes no chat completion ({error!r}).") from error

    def _fold(self, *events: Event) -> None:
        if self._capture is None or self._finished:
            return
        for event in events:
            self._capture.add(event)

    async def _ended_without_terminal(self, response: web.StreamResponse) -> None:
        """Some servers just close. With a finish reason for every choice the answer is whole all the same."""
        if self._capture is None and not self._way.translated:
            return
        if (failed := self._failed) is not None:
            await self._finish("error", error=failed)  # its own word has been passed on
            return
        replies = self._capture.replies() if self._capture is not None else []
        if self._capture is not None and not (len(replies) == self._asked.n and all(r.finish_reason for r in replies)):
            raise cut(None)
        before, last = self._end(None)
        if before:
            await response.write(before)
        await self._finish("done")
        self._said_all()
        if last:
            await response.write(last)

    @property
    def _failed(self) -> str | None:
        """Why the backend gave up, where it said so inside its stream."""
        return self._capture.failed if self._capture is not None else None

    def _said_all(self) -> None:
        """What is written next is the last of it. A client that goes before it has that may ask for it again."""
        if self._attempt is not None and self._failed is None:
            self._attempt.streamed()

    async def _broken_off(self, response: web.StreamResponse, error: ProxyError) -> None:
        already, failed = self._finished, self._failed
        await self._finish("partial" if failed is None else "error", error=failed or error.message)
        if not already and (failed is None or self._way.translated):  # else its own word has been passed on
            await response.write(self._gap + self._way.broken(error))

    async def _finish(self, status: Any, *, whole: WholeAnswer | None = None, error: str | None = None) -> None:
        if self._finished:
            return
        self._finished = True
        if self._capture is None:
            return
        replies = self._capture.whole(whole) if whole is not None else None
        # Shielded: a client that goes away in this moment does not undo what it has already been sent.
        await asyncio.shield(self._capture.finish(status, replies, error=error))

    def _keepable(self, said: str) -> str:
        return self._parts.redactor.text(without_keys(said, self._parts.request_headers(self._request)))


def _is_whole(event: Event) -> bool:
    """Whether all that is lacking is the blank line."""
    try:
        return event.data is None or bool(loads(event.data))
    except ValueError:
        return False


def _sendable(body: bytes) -> bytes | io.BytesIO:
    """A large body goes out in pieces, so that others are served between them."""
    return body if len(body) < LARGE else io.BytesIO(body)
