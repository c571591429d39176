"""Bodies in memory: how large one may be, how fast it has to come, and how much all of them hold together.

Owns the account of `server.max_held_bytes`: the bodies of requests, from their first byte to the end of their answer,
and what is kept of answers. Each key has its share of it. Small bodies are in no account: all places together hold
little of them. Not here: what a body means, and how large it is once unpacked (relay.context).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from config.sections import ServerSection
from proxy.access.pace import PACE, too_slow
from proxy.core.errors import Overloaded, ProxyError, TooLarge, TooMany, TooSlow
from proxy.core.offload import LIGHT, off_loop, whole_weight
from proxy.core.sharing.shares import SMALL, STEP, Holder, Refusal, Shares

BODY: Final = web.RequestKey("body", bytes)  # of a request that was waited for
RETRY_AFTER_S: Final = 2
# Of webhooks, which prove nothing before their body is here:
UNPROVEN: Final = 64  # that come in pieces at once; one more ends the oldest
UNPROVEN_BYTES: Final = 1 << 20  # the largest batches of platforms are half of that
UNPROVEN_S: Final = 10.0


class HeldBytes:
    """Bytes that one request holds in memory."""

    __slots__ = ("_amount", "_ended", "_holder", "_shares", "most_held")

    def __init__(self, shares: Shares, holder: Holder) -> None:
        self._shares = shares
        self._holder = holder
        self._amount = 0
        self._ended = False
        self.most_held = 0  # bytes at once, so far

    def take(self, amount: int) -> Refusal | None:
        """So many bytes more, unless that is refused; as it is once the request has ended."""
        refusal = "full" if self._ended else self._shares.take(self._holder, amount)
        if refusal is None:
            self._amount += amount
            self.most_held = max(self.most_held, self._amount)
        return refusal

    def take_up_to(self, total: int) -> None:
        """Take bytes until the request holds this many. Raises TooMany, Overloaded; TooLarge where they never fit."""
        if total > self._shares.most:
            raise TooLarge(
                f"The request needs {total:,} bytes of memory, by its length and by the number of things in it; "
                f"server.max_held_bytes is {self._shares.most:,}. Nothing was passed on."
            )
        if total > max(SMALL, self._amount) and (refusal := self.take(total - self._amount)) is not None:
            raise self.refusal_error(refusal)

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Hold so many bytes more meanwhile. Raises as `take_up_to`."""
        if amount <= SMALL:
            yield
            return
        self.take_up_to(self._amount + amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def give_back(self, amount: int) -> None:
        """So many bytes less; all of them have gone once the request has ended."""
        if amount and not self._ended:
            self._amount -= amount
            self._shares.give_back(self._holder, amount)

    def end(self) -> None:
        self.give_back(self._amount)
        self._ended = True

    def refusal_error(self, refusal: Refusal) -> ProxyError:
        most = f"the {self._shares.most:,} bytes of server.max_held_bytes"
        if refusal == "share":
            return TooMany(
                f"This key's requests hold their share of {most}; nothing was passed on, ask again when one has ended.",
                retry_after=RETRY_AFTER_S,
            )
        return Overloaded(
            f"Requests under way hold {most}; nothing was passed on, ask again in a moment.",
            retry_after=RETRY_AFTER_S,
        )


HELD_BYTES: Final = web.RequestKey("held", HeldBytes)


class Bodies:
    def __init__(self, settings: ServerSection) -> None:
        self._largest = settings.max_body_bytes
        self._patience = settings.slow_client_s
        self._shares = Shares(settings.max_held_bytes)
        self._unproven: deque[asyncio.Timeout] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes that are in the account."""
        return self._shares.in_use

    def hold_for(self, holder: Holder) -> HeldBytes:
        return HeldBytes(self._shares, holder)

    async def read(self, request: web.Request, holding: HeldBytes, *, stream: bool, weigh: bool) -> None:
        """Wait until the body is here; the handler finds it read. One that only passes through (`stream`) may be larger
        than memory, as a model's file, and is not waited for. `weigh`: it is parsed, and nobody else looks at what it
        comes to then. Raises TooLarge, TooSlow, TooMany, Overloaded."""
        if not request.can_read_body:
            return
        length = request.content_length
        if stream and (length is None or length > self._largest):
            return
        if length is not None and length > self._largest:
            raise self._too_large()
        if request.content.is_eof():  # it came with its head, as nearly all
            body = await request.read()
            holding.take_up_to(len(body))
        else:
            holding.take_up_to(length or 0)  # all that was announced, so that no two wait for each other's memory
            body = await self._in_time(request, holding, length or 0)
            request._read_bytes = body  # for handlers that read it by themselves
        request[BODY] = body
        if weigh and len(body) >= LIGHT:
            holding.take_up_to(len(body) + await off_loop(len(body), whole_weight, body))

    async def _in_time(self, request: web.Request, holding: HeldBytes, reserved_bytes: int) -> bytes:
        """The body, as long as each `server.slow_client_s` brings enough of it."""
        loop, body, size, mark = asyncio.get_running_loop(), bytearray(), 0, 0
        due = loop.time() + self._patience
        while True:
            try:
                async with asyncio.timeout_at(due):
                    piece = await request.content.readany()
            except TimeoutError:
                raise too_slow(size) from None
            if not piece:
                return bytes(body)
            body += piece
            size = len(body)
            if size > self._largest:
                raise self._too_large()
            while size > max(reserved_bytes, SMALL):
                reserved_bytes += STEP
                holding.take_up_to(reserved_bytes)
            if size - mark >= self._patience * PACE:
                mark, due = size, loop.time() + self._patience

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body is over {self._largest} bytes; raise server.max_body_bytes to allow it.")

    async def read_unproven(self, request: web.Request) -> None:
        """The same for a webhook. Nobody has shown a key, so it has no place that others would need. Where many bodies
        come slowly, the oldest makes way. Raises TooLarge, TooSlow."""
        if request.can_read_body:
            request[BODY] = await self._unproven_body(request)

    async def _unproven_body(self, request: web.Request) -> bytes:
        if request.content.is_eof():
            return _within_limit(await request.content.read())
        body = bytearray()
        try:
            async with asyncio.timeout(UNPROVEN_S) as deadline:
                self._unproven.append(deadline)
                if len(self._unproven) > UNPROVEN and not (oldest := self._unproven.popleft()).expired():
                    oldest.reschedule(asyncio.get_running_loop().time())
                async for piece in request.content.iter_any():
                    body += piece
                    _within_limit(body)
        except TimeoutError:
            raise TooSlow(
                f"The body of a webhook has {UNPROVEN_S:g} s to come, and less where others wait; nothing was taken, "
                "send it again."
            ) from None
        finally:
            if deadline in self._unproven:
                self._unproven.remove(deadline)
        return bytes(body)


def _within_limit(body: bytes | bytearray) -> bytes:
    if len(body) > UNPROVEN_BYTES:
        raise TooLarge(f"The body of a webhook is at most {UNPROVEN_BYTES} bytes.")
    return bytes(body)
