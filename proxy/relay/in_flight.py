"""One question to the backend, asked once more where that helps.

Owns the five reasons to ask again, as named steps. Each asks at most once more:

    ask           in the client's format; as chat completions, where the backend lacks it
      _answered   the backend had lost the version's adapter: it is loaded again
                  it refuses what only we had asked for, or fails over it
        _sent     nobody took the question there, or its server broke off before its first byte
                  the connection that was kept open had just been closed (_connected)

What is sent in which format is the codecs'; the answer is passed on by the exchange.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from proxy.access.unknown_route import MISSING
from proxy.backends.ask import down_error
from proxy.backends.base import Address, place_for
from proxy.backends.refused_wishes import BREAKS, REFUSES, Wishes
from proxy.core.backend_answer import Answer
from proxy.core.backend_http import Disconnected, NotConnected, Silent
from proxy.core.errors import BackendBroke, ProxyError
from proxy.core.http_message import NoHttp
from proxy.core.offload import LARGE, in_thread, off_loop
from proxy.core.redirects import refuse
from proxy.core.upstream import MOST_SHORT, let_go, message_in, no_http, read_short
from proxy.dialects import CHAT
from proxy.dialects.base import OutgoingRequest
from proxy.relay.codecs import Codec, Native, Translated, about_what_was_asked
from proxy.relay.context import RequestContext, new_id
from proxy.relay.framing import OK, error_at_once
from proxy.relay.parts import RelayParts
from proxy.relay.request_body import room_for

log = structlog.get_logger()

NOTICED_S: Final = 0.25  # in which the end of a process of ours is seen, after its port has closed
REFUSAL_S: Final = 10.0  # in which the body of a refusal of our wishes has to come
MOST_REFUSAL: Final = 300  # characters of what a server said to our wishes
RESTARTED_S: Final = 10.0  # in which a server that broke off has to answer again, or a question is not asked once more


class InFlightRequest:
    """One question on its way."""

    def __init__(
        self,
        parts: RelayParts,
        context: RequestContext,
        outgoing: OutgoingRequest,
        on_departure: Callable[[], None],
    ) -> None:
        """`on_departure` is called each time that the question has left."""
        self.codec: Codec
        self.withheld: str | None = None  # what the server said to our wishes, where they were not said
        self.refusal = b""  # a 404 that was read to see what it is about
        self.address: Address | None = None  # where the question is
        self._parts = parts
        self._server = context.server
        self._context = context
        self._outgoing = outgoing
        self._on_departure = on_departure
        self._taken_count = 0  # how many servers may have taken the question and broke off without a word

    def leave(self) -> None:
        """The question is nowhere any more."""
        if self.address is not None:
            self._server.backend.release(self.address)
            self.address = None

    async def ask(self) -> Answer:
        """The head of the answer. Raises ProxyError; BadRequest for what chat completions cannot say."""
        formats, dialect = self._server.formats, self._context.dialect
        if not formats.native(dialect.name):
            await self._translate()
            return await self._answered()
        # The client sees the model it asked for; an adapter's own name stays between us and the backend.
        is_renamed = self._context.lease.version is not None or self._server.is_further
        model = self._outgoing.parsed.model if is_renamed else None
        self.codec = Native(dialect, self._outgoing, self._server.backend.capabilities, self._context.id, model)
        upstream = await self._answered()
        if upstream.status not in MISSING or dialect is CHAT or formats.is_proven(dialect.name):
            if upstream.status in OK:
                formats.has(dialect.name)
            return upstream
        body = await read_short(upstream, room_for(self._context.request, MOST_SHORT))
        if about_what_was_asked(body, self._outgoing.parsed.model, dialect.paths[0]):
            self.refusal = body
            return upstream
        # No such route, or no such model: if it answers in chat completions, it was the route.
        await self._translate()
        upstream = await self._answered()
        if upstream.status not in MISSING:
            formats.lacks(dialect.name)
            log.info("backend lacks a dialect; it is translated from now on", dialect=dialect.name)
        return upstream

    async def _translate(self) -> None:
        """Raises BadRequest for what chat completions cannot say. They can say an empty list of messages."""
        outgoing, dialect = self._outgoing, self._context.dialect
        is_empty = dialect.may_be_empty and outgoing.body.get(dialect.carriers[0]) == []
        if outgoing.parsed.unreadable is not None and not is_empty:
            raise outgoing.parsed.unreadable
        self.codec = await off_loop(
            max(outgoing.size, outgoing.weight),
            Translated,
            dialect,
            outgoing,
            self._server.backend.capabilities,
            id=self._context.id or new_id(),
            model=outgoing.parsed.model or self._parts.live_version.model,
            created=int(time.time()),
        )
        if self.codec.left_out:
            log.info("left out: chat completions have no place for it", kinds=self.codec.left_out, id=self._context.id)

    async def _answered(self) -> Answer:
        """The answer of a server that has the version and takes what is asked. Only what is captured has wishes."""
        version, lost = self._context.lease.version, self._server.backend.capabilities.unknown_model_statuses
        wishes = self._wishes() if self._context.id is not None and self.codec.asks else None
        self.withheld = None if wishes is None else self._parts.wishes.refusal(wishes)
        message: str | None = None  # what the server said to our wishes
        given_back = False
        while True:
            wishing = wishes is not None and message is None and self.withheld is None
            upstream = await self._sent(wishing)
            if wishing and wishes is not None and (message := await self._refusal(upstream, wishes)) is not None:
                continue
            if upstream.status in lost and version and not given_back:
                await let_go(upstream)
                await self._parts.live_version.lost(version)
                given_back, message = True, None
                continue
            if message is not None and wishes is not None:
                await self._remember(upstream, wishes, message)
            return upstream

    def _wishes(self) -> Wishes:
        lease = self._context.lease
        model = lease.model if lease.version is None else self._parts.live_version.model
        return Wishes(model, self.codec.reads.name, frozenset(self.codec.asks), self.codec.shape)

    async def _refusal(self, upstream: Answer, wishes: Wishes) -> str | None:
        """The server's message, where that may be about our wishes. Nothing of the answer has been passed on yet."""
        capabilities = self._parts.wishes
        if upstream.status in OK:
            if capabilities.is_granted(wishes):
                return None
            if (message := await error_at_once(upstream)) is None:
                capabilities.grant(wishes)
            return message
        if upstream.status not in (*REFUSES, BREAKS):
            return None
        try:
            async with asyncio.timeout(REFUSAL_S):
                body = await read_short(upstream, room_for(self._context.request, MOST_SHORT))
        except (TimeoutError, BackendBroke):  # nobody can pass it on either, so it may as well be about our wishes
            upstream.close()
            return f"it answered {upstream.status}, and its error was too long or did not end"
        message = await off_loop(len(body), message_in, body)
        if capabilities.may_refuse(wishes, upstream.status, message):
            return message
        upstream.give_back(body)
        return None

    async def _remember(self, upstream: Answer, wishes: Wishes, message: str) -> None:
        """Note whether the server answers without our wishes what it did not answer with them."""
        if upstream.status not in OK or await error_at_once(upstream) is not None:
            self._parts.wishes.acquit(wishes)
            return
        self.withheld = message = self._parts.keepable(self._context.request, self._server, message)[:MOST_REFUSAL]
        self._parts.wishes.refuse(wishes, message)
        log.warning(
            "the backend refuses what makes captures exact; it is not asked for that for a while",
            model=wishes.model, members=sorted(wishes.members), said=message[:200],
        )  # fmt: skip

    async def _sent(self, wishing: bool) -> Answer:
        """The answer of a server that took the question: at most at two places, as it may be the question that ends a
        server."""
        parts, server, outgoing = self._parts, self._server, self._outgoing
        heavy = max(outgoing.size, outgoing.weight) if outgoing.add else outgoing.weight
        for last_place in (False, True):
            if self.address is not None:
                self.leave()  # an earlier question of this request
            self.address = address = server.backend.address(self._context.lease.model, self._context.conversation)
            if heavy < LARGE:
                body = self.codec.body(address.members, asking=wishing)
            else:
                body = await in_thread(self.codec.body, address.members, asking=wishing)
            trace = self._context.trace
            trace.departure, trace.backend_url = time.perf_counter(), address.url
            try:
                upstream = await self._connected(address.url, body)
                trace.head = time.perf_counter()
                refuse(address.url, upstream)
                return upstream
            except Silent as error:  # it took the question and is silent: another would be, too
                raise down_error(address.url, error, server.backend.kind, server.section) from error
            except NoHttp as error:
                raise no_http(error) from error
            except (TimeoutError, OSError) as error:
                parts.health.files.check(error)
                parts.wishes.forget()
                elsewhere = server.backend.fail_over(address)
                if last_place or not (elsewhere or await self._is_back(error)):
                    raise down_error(address.url, error, server.backend.kind, server.section) from error
        raise AssertionError("unreachable")

    async def _connected(self, url: str, body: bytes) -> Answer:
        parts = self._parts
        assert parts.connections is not None
        head, ids = self._context.head, self._context.trace.ids
        target = self.codec.path or head.target
        lines = head.lines if ids is None else head.lines + ids.header
        closed: Disconnected | None = None
        for last_try in (False, True):
            try:
                return await parts.connections.ask(
                    "POST", url, target, lines, body, unpack=True, on_sent=self._on_departure
                )
            except Disconnected as error:
                self._taken_count += 1
                if last_try or self._taken_count > 1:
                    raise
                closed = error
            except NotConnected:
                if closed is not None:  # whoever closed the first one may have taken the question, and died of it
                    raise closed from None
                raise
            except TimeoutError:  # nobody took it, or it is silent: no reason to ask again
                raise
            except OSError:
                self._taken_count += 1
                raise
        raise AssertionError("unreachable")

    async def _is_back(self, error: Exception) -> bool:
        """Tell whether to ask once more. Raises BackendDown where a server of ours does not come back.

        Where nobody took the question: after the time that a server of ours takes to start again. Where one may have
        taken it, but not a byte of an answer came: once, if somebody answers there again soon. It may have been the
        question that ended the server, so never a second time; and not where each answer has its price.
        """
        if isinstance(error, NotConnected):
            await asyncio.sleep(NOTICED_S)  # in which a server of ours is seen to have ended
            await self._server.backend.ready()
            return True
        foreign = self._server.backend.capabilities.is_foreign
        return not foreign and self._taken_count == 1 and await self._answers_again()

    async def _answers_again(self) -> bool:
        try:
            async with asyncio.timeout(RESTARTED_S):
                await asyncio.sleep(NOTICED_S)
                while not await self._is_well():
                    await asyncio.sleep(NOTICED_S)
        except TimeoutError:
            return False
        log.warning("a question whose server broke off is asked once more", completion=self._context.id)
        return True

    async def _is_well(self) -> bool:
        connections, backend = self._parts.connections, self._server.backend
        assert connections is not None
        try:
            await backend.ready()
            with place_for(backend, self._context.lease.model) as address:
                answer = await connections.ask("GET", address.url, "/v1/models", backend.headers(), None)
                answer.close()
                return answer.status < 500
        except (ProxyError, NoHttp, OSError):
            return False
