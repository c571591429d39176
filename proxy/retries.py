"""An SDK's second try of the same request is the same request: never a second completion.

OpenAI's and Anthropic's SDKs count their tries in `x-stainless-retry-count`. Owns which earlier try a retry belongs to,
and what becomes of it:

- the first try is under way: the retry waits until it has ended (its client has mostly gone, so that is soon);
- it was answered whole, in one body or as a stream to its end: those bytes are sent again, with the same completion id;
- anything else (an error, a part): the backend is asked afresh, and the earlier rows go when the new request begins,
  unless somebody has rated them.

Only in memory, and only for a while: an SDK gives up after a minute or two. A request that is no counted retry is never
joined to another: asking the same thing twice on purpose gives two completions.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from store.store import Store

COUNT: Final = "x-stainless-retry-count"
KEPT_S: Final = 600.0
KEPT_ENTRIES: Final = 1024
KEPT_BYTES: Final = 32 * 1024 * 1024  # of all answers; the oldest go first, and are asked for again


class Recording(web.StreamResponse):
    """A stream that is kept while it is sent: also what a client did not live to see."""

    def __init__(self, status: int, headers: CIMultiDict[str]) -> None:
        super().__init__(status=status, headers=headers)
        self.sent = bytearray()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data
        await super().write(data)


class Attempt:
    """One try of a request that its SDK may send again."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.at = time.monotonic()
        self.ended = asyncio.Event()
        self.completion: str | None = None  # the id of the first choice, once there is a row
        self._answer: tuple[int, CIMultiDict[str], bytes] | None = None
        self._recording: tuple[CIMultiDict[str], Recording] | None = None
        self._to_its_end = False

    @property
    def answered(self) -> bool:
        return self._answer is not None or (self._recording is not None and self._to_its_end)

    def keep(self, response: web.StreamResponse) -> None:
        """Remember a whole answer of one body. Called before it leaves: the client may be gone by then."""
        if not isinstance(response, web.Response) or response.status != 200:
            return
        if isinstance(response.body, bytes):
            self._answer = response.status, CIMultiDict(response.headers), response.body

    def stream(self, status: int, headers: CIMultiDict[str]) -> web.StreamResponse:
        """A stream to answer with; `streamed` says that what it is sent next is its end."""
        found = Recording(status, headers)
        self._recording = (headers.copy(), found)
        return found

    def streamed(self) -> None:
        self._to_its_end = True

    @property
    def size(self) -> int:
        if self._answer is not None:
            return len(self._answer[2])
        return 0 if self._recording is None else len(self._recording[1].sent)

    def drop(self) -> None:
        self._answer = self._recording = None

    def inherit(self, earlier: Attempt) -> None:
        self.completion, self._answer = earlier.completion, earlier._answer
        self._recording, self._to_its_end = earlier._recording, earlier._to_its_end

    async def again(self, request: web.Request) -> web.StreamResponse:
        if self._answer is not None:
            status, headers, body = self._answer
            return web.Response(status=status, headers=headers, body=body)
        assert self._recording is not None
        headers, recording = self._recording
        response = web.StreamResponse(status=recording.status, headers=headers)
        await response.prepare(request)
        await response.write(bytes(recording.sent))
        await response.write_eof()
        return response


class Retries:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._attempts: deque[Attempt] = deque(maxlen=KEPT_ENTRIES)

    @contextmanager
    def attempt(self, request: web.Request, key: bytes | None) -> Iterator[tuple[Attempt | None, Attempt | None]]:
        """This try, and the earlier one that it repeats; None where the client does not count its tries."""
        if key is None:
            yield None, None
            return
        self._forget_old()
        earlier = self._take(key) if int(request.headers[COUNT]) > 0 else None
        current = Attempt(key)
        self._attempts.append(current)
        try:
            yield current, earlier
        finally:
            current.ended.set()

    def _take(self, key: bytes) -> Attempt | None:
        """The try that most likely failed its client: one that ended without an answer before one that has one.

        Each is taken once: of two equal requests with one retry each, both get their own.
        """
        same = [a for a in self._attempts if a.key == key]
        if not same:
            return None
        found = min(same, key=lambda a: (not a.ended.is_set(), a.answered))
        self._attempts.remove(found)
        return found

    def _forget_old(self) -> None:
        oldest = time.monotonic() - KEPT_S
        while self._attempts and self._attempts[0].at < oldest:
            self._attempts.popleft()
        size = sum(attempt.size for attempt in self._attempts)
        for attempt in self._attempts:
            if size <= KEPT_BYTES:
                break
            size -= attempt.size
            attempt.drop()

    async def settle(self, attempt: Attempt, earlier: Attempt, choices: int) -> bool:
        """Whether `attempt` has the earlier try's answer now; if not, the backend is to be asked: its rows are gone."""
        try:
            await earlier.ended.wait()
        except BaseException:  # this client went too: the next retry belongs to the try that still runs
            if attempt in self._attempts:
                self._attempts.remove(attempt)
            self._attempts.append(earlier)
            raise
        if earlier.answered:
            attempt.inherit(earlier)
            return True
        await self._forget(earlier, choices)
        return False

    async def _forget(self, earlier: Attempt, choices: int) -> None:
        """What a person has rated stays."""
        if earlier.completion is None:
            return
        ids = [earlier.completion, *(f"{earlier.completion}.{i}" for i in range(1, choices))]
        await self._store.forget_unrated(ids)


def key_of(request: web.Request, raw: bytes) -> bytes | None:
    """Same body to the same route, by the same key and for the same session and person. None where the client does
    not count its tries."""
    if not request.headers.get(COUNT, "").isdecimal():
        return None
    digest = hashlib.blake2b(digest_size=32)
    names = ("authorization", "x-api-key", "x-rl-session", "x-rl-user", "x-rl-turn", "x-rl-capture")
    for part in (request.raw_path, *(request.headers.get(name, "") for name in names)):
        digest.update(len(part).to_bytes(8, "big") + part.encode("utf-8", "surrogateescape"))
    digest.update(raw)
    return digest.digest()
