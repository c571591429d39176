"""An SDK's second try of the same request is the same request: never a second completion.

OpenAI's and Anthropic's SDKs count their tries in `x-stainless-retry-count`. Owns which earlier try a retry belongs to,
and what becomes of it:

- the first try is under way: the retry waits until it has ended (its client has mostly gone, so that is soon);
- its answer was whole, in one body or as a stream to its end, and did not all leave. Those bytes are sent again, with
  the same completion id;
- anything else (an error, a part): the backend is asked afresh. The earlier rows go when the new request begins, unless
  somebody has rated them, or they may be another request's;
- its whole answer left, and its client asks again all the same: the backend is asked afresh. Where it cannot be another
  request's, that answer counts as a side turn from then on, unless somebody has rated it;
- it was a command: that acts once, and says the same again, also where all of its answer left. It goes on to its end
  where its client has gone.

Whoever wants several answers to one prompt sends the same bytes, so equal requests are told apart by what failed. A try
does not count whose whole answer left, and none counts where rlproxy's limits refused the try. An id of the client's
own says it outright. What may be another's is asked afresh: that costs a second answer, and never gives a wrong one.

Only in memory, and only for a while: an SDK gives up after a minute or two. A request that is not a counted retry is
never joined to another: asking the same thing twice on purpose gives two completions. Of a request that is not captured
no answer is kept, and a retry of it is a request like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from aiohttp import web
from multidict import CIMultiDict

from proxy.access.bodies import HELD_BYTES
from proxy.access.pace import PacedStream
from proxy.core.sharing.shares import Room
from proxy.core.tasks import Tasks
from proxy.dialects.identity import AGENT_HEADERS
from store.store import Store

COUNT: Final = "x-stainless-retry-count"
RETRIED: Final = "retried"  # the rule by which an answer is a side turn that nobody read
# With one of these a client says itself which request it is.
_NAMING_HEADERS: Final = ("x-rl-completion-id", "idempotency-key")
_CLIENT_HEADERS: Final = (
    "authorization", "x-api-key", "user-agent", "x-rl-session", "x-rl-user", "x-rl-turn", "x-rl-capture",
    *_NAMING_HEADERS, *AGENT_HEADERS, "content-length",
)  # fmt: skip
TOO_LONG: Final = 10  # digits of a count
KEPT_S: Final = 600.0
KEPT_ENTRIES: Final = 1024
KEPT_BYTES: Final = 32 * 1024 * 1024  # of all answers; the oldest go first, and are asked for again
LONGEST: Final = KEPT_BYTES // 4  # of one; a longer one is asked for again
DONE_ALREADY: Final = "rlproxy: this was done already, and what was said of it is forgotten; nothing was done again."


class Recording(PacedStream):
    """A stream that is kept while it is sent: also what a client did not live to see."""

    def __init__(self, status: int, headers: CIMultiDict[str]) -> None:
        super().__init__(status=status, headers=headers)
        self.sent = bytearray()
        self.is_whole = True  # else it became too long, and is not kept
        self._size = self._sent_bytes = 0  # bytes that were written, and of those that have left
        self._room: Room | None = None  # once something has been written

    @property
    def has_left(self) -> bool:
        return self._sent_bytes == self._size

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self._keep(data)
        await super().write(data)
        self._sent_bytes = self._size

    async def write_eof(self, data: bytes = b"") -> None:
        self._keep(data)
        await super().write_eof(data)
        self._sent_bytes = self._size

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        self._size += len(data)
        if self._room is None:
            self._room = Room(LONGEST, None if self._req is None else self._req.get(HELD_BYTES))
        if self.is_whole and not self._room.fits(self._size):
            self.is_whole, self.sent = False, bytearray()
            self._room.end()
        if self.is_whole:
            self.sent += data


class Attempt:
    """One try of a request that its SDK may send again."""

    def __init__(self, key: bytes, count: int, peer: str | None, session: str | None) -> None:
        self.key, self.count, self.peer, self.session = key, count, peer, session
        self.received_at = time.monotonic()
        self.ended = asyncio.Event()
        self.completion: str | None = None  # the id of the first choice, once there is a row
        self.surely = False  # once it was taken: whether it was the same client's
        self.command_answer: asyncio.Future[str] | None = None  # our answer to a command
        self.finishing: asyncio.Future[Any] | None = None  # what is still storing its rows, where it broke off
        self._answer: tuple[int, CIMultiDict[str], bytes] | None = None
        self._recording: tuple[CIMultiDict[str], Recording] | None = None
        self._to_its_end = False
        self._response: web.StreamResponse | None = None  # what carried its answer
        self._is_delivered = False

    @property
    def arrived(self) -> bool:
        """Tell whether its whole answer has left, so that its client has no reason to ask again."""
        response = self._response
        return self._is_delivered or (self._to_its_end and response is not None and _has_left(response))

    @property
    def answered(self) -> bool:
        recording = self._recording
        return self._answer is not None or (recording is not None and self._to_its_end and recording[1].is_whole)

    def keep(self, response: web.StreamResponse) -> None:
        """Remember a whole answer of one body. Called before it leaves: the client may be gone by then."""
        if not isinstance(response, web.Response) or response.status != 200:
            return
        if isinstance(response.body, bytes):
            if len(response.body) <= LONGEST:
                self._answer = response.status, CIMultiDict(response.headers), response.body
            self._response, self._to_its_end = response, True

    def stream(self, status: int, headers: CIMultiDict[str]) -> web.StreamResponse:
        """A stream to answer with; `streamed` says that what it is sent next is its end."""
        recording = Recording(status, headers)
        self._recording = (headers.copy(), recording)
        self._response = recording
        return recording

    def streamed(self) -> None:
        self._to_its_end = True

    @property
    def size(self) -> int:
        if self._answer is not None:
            return len(self._answer[2])
        return 0 if self._recording is None else len(self._recording[1].sent)

    def drop(self) -> None:
        self._is_delivered = self.arrived
        self._answer = self._recording = self._response = None

    def inherit(self, repeated: Attempt) -> None:
        self.completion, self._answer = repeated.completion, repeated._answer
        self._recording, self._to_its_end = repeated._recording, repeated._to_its_end

    async def replay(self, request: web.Request) -> web.StreamResponse:
        if self._answer is not None:
            status, headers, body = self._answer
            self._response = web.Response(status=status, headers=headers, body=body)
            return self._response
        assert self._recording is not None
        headers, recording = self._recording
        self._response = response = PacedStream(status=recording.status, headers=headers)
        await response.prepare(request)
        await response.write(bytes(recording.sent))
        await response.write_eof()
        return response


class RejectedAttempt(NamedTuple):
    """A try that got no further than our limits: of its body, only the length is known."""

    received_at: float
    head: bytes
    tries: int


class Retries:
    def __init__(self, store: Store, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._attempts: deque[Attempt] = deque(maxlen=KEPT_ENTRIES)
        self._refused: deque[RejectedAttempt] = deque(maxlen=KEPT_ENTRIES)

    def refused(self, request: web.Request) -> None:
        """Its SDK will try again, and that has nothing to do with an equal request which was let in."""
        off = request.headers.get("x-rl-capture", "on").strip().lower() != "on"  # then none that was let in is known
        if not off and (count := _count(request)) is not None:
            self._refused.append(RejectedAttempt(time.monotonic(), _head(request).digest(), count))

    def forget(self, completions: Collection[str]) -> None:
        """Answers that are gone for good, or one choice of them, are not given again."""
        forgotten = {*completions, *(id.rpartition(".")[0] for id in completions)}
        for attempt in [attempt for attempt in self._attempts if attempt.completion in forgotten]:
            self._attempts.remove(attempt)
        for attempt in self._attempts:
            # A command's answer may speak of what is gone.
            if attempt.command_answer is not None and _succeeded(attempt.command_answer):
                attempt.command_answer = asyncio.get_running_loop().create_future()
                attempt.command_answer.set_result(DONE_ALREADY)

    def forget_session(self, session: str) -> None:
        """Nothing of it is kept any more. What is under way ends for the client that has asked, and is not kept."""
        for attempt in [entry for entry in self._attempts if entry.session == session and entry.command_answer is None]:
            self._attempts.remove(attempt)

    @contextmanager
    def attempt(
        self, request: web.Request, key: bytes | None, session: str | None
    ) -> Iterator[tuple[Attempt | None, Attempt | None]]:
        """This try, and the earlier one that it repeats; None where the client does not count its tries."""
        if key is None:
            yield None, None
            return
        self._forget_old()
        count = int(request.headers[COUNT])
        repeated = self._take(request, key, count) if count > 0 else None
        if count > 0 and repeated is None:
            self._pass_over(request, key, count)
        current = Attempt(key, count, request.remote, session)
        self._attempts.append(current)
        try:
            yield current, repeated
        finally:
            current.ended.set()

    def _take(self, request: web.Request, key: bytes, count: int) -> Attempt | None:
        """The try that most likely failed its client: one that ended without an answer before one that has one.

        Each is taken once: of two equal requests with one retry each, both get their own.
        """
        has_id = any(name in request.headers for name in _NAMING_HEADERS)
        if self._was_refused(request, count - 1) and not has_id:
            return None
        same = [a for a in self._attempts if a.key == key and a.count < count and (has_id or not a.arrived)]
        if not same:
            return None
        choice = min(same, key=lambda a: (not a.ended.is_set(), a.answered or a.command_answer is not None))
        choice.surely = has_id or (len(same) == 1 and choice.peer == request.remote)
        self._attempts.remove(choice)
        return choice

    def _pass_over(self, request: web.Request, key: bytes, count: int) -> None:
        """All of the answer before this had left, and still its client asks again. It has not read it, as where the
        event loop of that connection is gone. What nobody saw is not a main turn; that a model answers it twice is the
        price of never giving a wrong answer. Nothing is passed over where it may be another's, or somebody rated it."""
        same = [a for a in self._attempts if a.key == key and a.count == count - 1 and a.arrived]
        if len(same) == 1 and same[0].peer == request.remote and same[0].completion is not None:
            self._attempts.remove(same[0])
            self._tasks.spawn("finish-passing-over", self._store.completions.pass_over([same[0].completion], RETRIED))

    def _was_refused(self, request: web.Request, count: int) -> bool:
        if not self._refused:
            return False
        head = _head(request).digest()
        refusal = next((entry for entry in self._refused if entry.head == head and entry.tries == count), None)
        if refusal is not None:
            self._refused.remove(refusal)
        return refusal is not None

    def _forget_old(self) -> None:
        oldest = time.monotonic() - KEPT_S
        while self._attempts and self._attempts[0].received_at < oldest:
            self._attempts.popleft()
        while self._refused and self._refused[0].received_at < oldest:
            self._refused.popleft()
        size = sum(attempt.size for attempt in self._attempts)
        for attempt in self._attempts:
            if size <= KEPT_BYTES:
                break
            size -= attempt.size
            attempt.drop()

    async def settle(self, attempt: Attempt, repeated: Attempt, choices: int) -> bool:
        """Tell if `attempt` has the earlier try's answer now; if not, the backend is to be asked: its rows are gone."""
        try:
            await repeated.ended.wait()
        except BaseException:  # this client went too: the next retry belongs to the try that still runs
            if attempt in self._attempts:  # else its session was switched off
                self._attempts.remove(attempt)
                self._attempts.append(repeated)
            raise
        if repeated.answered:
            attempt.inherit(repeated)
            return True
        await self._forget(repeated, choices)
        return False

    async def once(
        self, attempt: Attempt | None, repeated: Attempt | None, act: Callable[[], Coroutine[Any, Any, str]]
    ) -> str:
        """Answer of a command that acts once: also where its client goes meanwhile and asks again."""
        if attempt is None:
            return await act()
        running = None if repeated is None else repeated.command_answer
        if running is None or (running.done() and not _succeeded(running)):
            running = self._tasks.spawn("finish-command", act())
        attempt.command_answer = running
        return await asyncio.shield(running)

    async def _forget(self, repeated: Attempt, choices: int) -> None:
        """Remove earlier tries; what a person has rated stays, and so does what may be another client's."""
        if repeated.finishing is not None:  # or the rows would come after they went
            await asyncio.wait({repeated.finishing})
        if repeated.completion is None or not repeated.surely:
            return
        ids = [repeated.completion, *(f"{repeated.completion}.{i}" for i in range(1, choices))]
        await self._store.completions.forget_unrated(ids)


def _succeeded(answer: asyncio.Future[str]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def key_of(request: web.Request, raw: bytes) -> bytes | None:
    """Same body to the same route, by the same program and key, for the same session and person, and of the same id.
    None where the client does not count its tries."""
    if _count(request) is None:
        return None
    digest = _head(request)
    digest.update(raw)
    return digest.digest()


def _has_left(response: web.StreamResponse) -> bool:
    """Note that a stream has left to its last event: many clients close there, and do not wait for the end of
    the body."""
    return response.has_left if isinstance(response, Recording) else response.body_length > 0


def _count(request: web.Request) -> int | None:
    header = request.headers.get(COUNT, "")
    return int(header) if header.isdecimal() and len(header) < TOO_LONG else None


def _head(request: web.Request) -> hashlib.blake2b:
    """All but the body."""
    head = "\n".join((request.raw_path, *(request.headers.get(name, "") for name in _CLIENT_HEADERS), ""))
    return hashlib.blake2b(head.encode("utf-8", "surrogateescape"), digest_size=32)
