"""One request's completions on their way into the store.

Owns: the rows of a request (one a choice), what was folded from the stream, and the commit that the terminal
event waits for. A parser that fails never breaks a stream: the completion is kept, marked inexact.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
import structlog

from proxy.backends.sampling_defaults import changes_nothing
from proxy.conversation.capture_health import Health
from proxy.conversation.conversations import canonical, extend_thread
from proxy.conversation.cut_prompts import CUT, why_cut
from proxy.conversation.redaction import INEXACT, UNTRAINABLE, WORTH_A_THREAD, Redactor, places
from proxy.conversation.underway import Underway
from proxy.core.events import Events
from proxy.core.json_edit import WholeAnswer
from proxy.core.metrics import Metrics
from proxy.core.offload import ITEM, length, off_loop_above
from proxy.core.sse import Event, EventSplitter
from proxy.core.tasks import Later, Tasks
from proxy.dialects import CHAT, Dialect, Reply
from proxy.dialects.base import Fold
from proxy.relay.call import choice_id
from store.captured.rows import IDS, LOGPROBS
from store.errors import DuplicateCompletion, StoreError, UnknownCompletion
from store.records import Asker, FinishedCompletion, NewCompletion, Status
from store.store import Store

log = structlog.get_logger()

READ_AT_ONCE: Final = 1 << 15  # bytes of events that are parsed together: about a quarter of a millisecond
BESIDE_S: Final = 1.0  # from the question to its row: a kill in between leaves no trace of it
LOST: Final = "the disk did not take this answer; it was relayed"
MakesRow = Callable[[], NewCompletion | Awaitable[NewCompletion]]  # at once, where nothing has to be waited for


class Capture:
    """The completions of one request, from sent to committed."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        health: Health,
        events: Events,
        redactor: Redactor,
        underway: Underway,
        id: str,
        n: int,
        keepable: Callable[[str], str] = str,
        dialect: Dialect = CHAT,
    ) -> None:
        """`keepable`: what may be stored of an error."""
        self.id = id
        self._store = store
        self._metrics = metrics
        self._health = health
        self._redactor = redactor
        self._keepable = keepable
        self._events = events
        self._underway = underway
        self.dialect = dialect  # that its answer comes in
        self._fold: Fold | None = None  # from the first event of a stream on
        self.translated = False  # its answer comes as chat completions, and is said again
        self._broken: str | None = None
        self._unread: list[bytes] = []  # whole events, not parsed yet
        self._unread_size = 0
        self._kind: type[EventSplitter]  # that cuts what is unread
        self._n = n
        self.asker: Asker | None = None
        self.guessed: str | None = None  # why it is not known how the server samples, where it is not
        self.logprobs_of: str | None = None  # what the backend's log-probs are of (proxy.backends.base)
        self._rows: list[NewCompletion] = []
        self._tasks: Tasks
        self._row_of: MakesRow
        self._made_beside: asyncio.Task[None] | None = None
        self._unmade: Exception | None = None  # why there are no rows
        self._making: Later | None = None
        self._begun: asyncio.Future[None] | None = None  # ends when the rows are on disk or were not taken
        self._ending: asyncio.Future[Any] | None = None  # likewise, of the answer with its end

    def begin_beside(self, tasks: Tasks, row: MakesRow, *, at_once: bool) -> None:
        """Note that the question is on its way. Its rows are made `at_once`, while the backend works on it, or else
        BESIDE_S from now, when nobody waits for the answer's first byte. They are queued BESIDE_S from now. An answer
        that ends sooner is stored in one operation, with the rows that it has or that are made then."""
        self._tasks, self._row_of = tasks, row
        self._underway.begun(self.id, self)
        self._making = Later(tasks, BESIDE_S, f"begin-{self.id}", self._queue)
        if at_once:
            self._make()

    async def _queue(self) -> None:
        await self._made()
        self._begun = self._store.completions.begin(self._rows)  # the end of the request asks whether this failed

    def _make(self) -> None:
        """Make the rows, or have a task make them where that takes long, or the store has to be asked."""
        try:
            found = self._row_of()
            if isinstance(found, NewCompletion):
                self._number(found)
            else:
                self._made_beside = self._tasks.spawn(f"row-{self.id}", self._number_later(found))
        except Exception as error:  # it must not cost the client its answer
            self._unmade = error

    async def _number_later(self, row: Awaitable[NewCompletion]) -> None:
        try:
            self._number(await row)
        except Exception as error:
            self._unmade = error

    async def _made(self) -> None:
        """Have the rows. Raises what making them raised."""
        if not self._rows and self._made_beside is None and self._unmade is None:
            self._make()
        if not self._rows and self._made_beside is not None:
            await asyncio.shield(self._made_beside)
        if self._unmade is not None:
            raise self._unmade

    async def begin_now(self) -> None:
        """Not beside its question any more: somebody has said something about this answer while it comes."""
        if self._making is not None:
            self._making.begin()
            if self._making.task is not None:
                await asyncio.wait({self._making.task})
        for stored in (self._begun, self._ending):
            if stored is not None:
                await asyncio.wait({stored})

    async def begin(self, row: NewCompletion) -> None:
        """The rows, stored. Raises DuplicateCompletion."""
        self._number(row)
        try:
            self._begun = self._store.completions.begin(self._rows)
            await asyncio.shield(self._begun)  # it is stored whether or not its client stays
        except DuplicateCompletion:
            raise
        except StoreError as error:
            log.error("capture is failing", completion=self.id, error=str(error))
        self._underway.begun(self.id, self)

    async def given_up(self, error: str) -> bool:
        """Its client left while `begin` stored the rows: they are not pending for ever. Tell whether there are any; an
        id that exists is of another request."""
        if self._begun is None:
            return False
        await asyncio.wait({self._begun})
        if isinstance(self._begun.exception(), DuplicateCompletion):
            return False
        await self.finish("partial", error=error)
        return True

    def _number(self, row: NewCompletion) -> None:
        more = [replace(row, id=choice_id(self.id, i), choice=i) for i in range(1, self._n)] if self._n > 1 else ()
        self._rows = [row, *more]

    def keep(self, piece: bytes, splitter: EventSplitter) -> None:
        """Whole events of the stream, as the backend sent them. They are read together: later, and off the way of
        those that come next. A splitter of the same kind will cut them: this one may know other line ends by then."""
        self._kind = type(splitter)
        self._unread.append(piece)
        self._unread_size += len(piece)
        if self._unread_size >= READ_AT_ONCE:
            self._read()

    def _read(self) -> None:
        if not self._unread:
            return
        piece = b"".join(self._unread)
        self._unread.clear()
        self._unread_size = 0
        said = self._kind.objects(piece)
        for event in self._kind().feed(piece) if said is None else ():
            self.add(event)
        self._fold_all(said or ())

    def take(self, said: Sequence[Any]) -> None:
        """Events of the stream, parsed."""
        self._read()
        self._fold_all(said)

    def add(self, event: Event) -> None:
        """One event of the stream, as the backend sent it."""
        self._read()
        if event.data is None or not event.data.strip() or event.says_done:
            return
        try:
            said = event.json()
        except ValueError as error:  # it may have been an object, and a token is missing
            self._break(error)
        else:
            self._fold_all([said])

    def _fold_all(self, said: Sequence[Any]) -> None:
        """Up to the first that cannot be understood."""
        if self._broken is None:
            try:
                if self._fold is None:
                    self._fold = self.dialect.fold()
                for one in said:
                    self._fold.add(one)
            except Exception as error:  # whatever a backend may send
                self._break(error)

    def _break(self, error: Exception) -> None:
        self._broken = self._broken or f"an event of the stream could not be understood: {error!r}"

    @property
    def failed(self) -> str | None:
        """Why the backend gave up, where it said so inside its stream."""
        self._read()
        return None if self._fold is None else self._fold.failed

    def replies(self) -> list[Reply]:
        """Replies of the stream so far; none, and marked, where no reply can be made of it."""
        self._read()
        try:
            return _numbered((self._fold or self.dialect.fold()).replies())
        except Exception as error:  # whatever a backend may send
            self._broken = self._broken or f"the events of the stream make no reply: {error!r}"
            return []

    def whole(self, answer: WholeAnswer) -> list[Reply]:
        """The replies of a plain body; none, and marked, where it cannot be understood."""
        try:
            return _numbered(self.dialect.whole(answer.parsed))
        except Exception as error:
            self._broken = f"the answer could not be understood: {error!r}"
            return []

    async def finish(self, status: Status, replies: Sequence[Reply] | None = None, *, error: str | None = None) -> bool:
        """Commit what came; returns when it is on disk, or False where the disk did not take it. Whoever is cancelled
        here does not undo it."""
        stored = self._on_its_way(status, replies, error)
        if stored is None:
            self._ending = ending = asyncio.ensure_future(self._finish(status, replies, error))
            return await asyncio.shield(ending)
        self._ending = stored
        try:
            await asyncio.shield(stored)
        except StoreError:
            return False
        return True

    def _on_its_way(
        self, status: Status, replies: Sequence[Reply] | None, error: str | None
    ) -> asyncio.Future[None] | None:
        """The one operation that stores all of it, queued; None where anything has to be waited for before, as a row
        that was begun. So most answers need no task of their own."""
        if self._making is None or self._making.task is not None or self._health.lost:
            return None
        if not self._rows and self._made_beside is None and self._unmade is None:
            self._make()
        if not self._rows:
            return None
        found, status, error = self._outcome(status, replies, error)
        if self._size(found) >= WORTH_A_THREAD:
            return None
        self._making.take_back()
        ends = self._ends(found, status, error)
        stored = self._store.completions.record(self._rows, ends)
        stored.add_done_callback(partial(self._recorded, status, ends))
        return stored

    def _recorded(self, status: Status, ends: Sequence[FinishedCompletion], stored: asyncio.Future[None]) -> None:
        self._underway.ended(self.id)
        if stored.cancelled():
            return
        if (failed := stored.exception()) is None:
            self._kept(status, len(ends))
        elif isinstance(failed, StoreError):
            self._lost(ends, failed)

    async def _finish(self, status: Status, replies: Sequence[Reply] | None, error: str | None) -> bool:
        try:
            return await self._finished(status, replies, error)
        finally:
            self._underway.ended(self.id)

    async def _finished(self, status: Status, replies: Sequence[Reply] | None, error: str | None) -> bool:
        try:
            await self._begun_or_made()
        except Exception as failed:
            return self._not_stored(RuntimeError(f"the request makes no row ({failed!r})"))
        found, status, error = self._outcome(status, replies, error)
        ends = await off_loop_above(WORTH_A_THREAD, self._size(found), self._ends, found, status, error)
        try:
            kept = await self._store_ends(ends)
        except StoreError as failed:
            return self._lost(ends, failed)
        if self._health.lost:
            await self._end_lost()
        return self._kept(status, kept)

    async def _begun_or_made(self) -> None:
        """Raises what making the rows raised."""
        if self._making is None:
            return
        self._making.take_back()
        await (self._made() if self._making.task is None else self._making.task)

    def _outcome(
        self, status: Status, replies: Sequence[Reply] | None, error: str | None
    ) -> tuple[dict[int, Reply], Status, str | None]:
        """The replies by their choices, and how it ended."""
        found: dict[int, Reply] = {}
        for reply in self.replies() if replies is None else replies:
            found[reply.index] = reply
        if status == "done" and replies is None and self.failed:
            status, error = "error", self.failed
        if status == "done" and not found:
            status, error = "error", error or self._broken or "the backend answered nothing"
        return found, status, None if error is None else self._keep(self._keepable(error))

    def _size(self, found: Mapping[int, Reply]) -> int:
        """Characters to look at. The prompt counts, too: whether it was cut is seen in all of it."""
        size = 0
        for row in self._rows:
            size += ITEM * len(row.prompt)
        for reply in found.values():
            size += length(reply.message)
        return size

    def _kept(self, status: Status, count: int) -> bool:
        self._health.problem = None
        self._metrics.captured.labels(status).inc(count)
        self._health.turns += status == "done" and self._rows[0].turn == "main"
        self._events.note("captured")
        return True

    def _lost(self, ends: Sequence[FinishedCompletion], failed: StoreError) -> bool:
        self._health.lost.extend(row.id for row in ends)
        return self._not_stored(failed)

    async def _store_ends(self, rows: Sequence[FinishedCompletion]) -> int:
        """How many were kept; those that were forgotten while they ran stay forgotten."""
        if self._begun is not None:
            try:
                await self._store.completions.finish(rows)
                return len(rows)
            except UnknownCompletion:
                if self._begun.exception() is None:  # it was begun before: what is gone now, somebody has deleted
                    return sum([await self._still_there(row) for row in rows])
        await self._store.completions.record(self._rows, rows)  # it ended at once, or the disk was full when it began
        return len(rows)

    async def _still_there(self, row: FinishedCompletion) -> bool:
        try:
            await self._store.completions.finish([row])
        except UnknownCompletion:
            return False
        return True

    def _not_stored(self, failed: Exception) -> bool:
        self._metrics.not_stored.inc(self._n)
        self._health.problem = f"Answers are relayed but not captured: {failed}"
        log.error("completion not stored", completion=self.id, error=str(failed))
        return False

    async def _end_lost(self) -> None:
        """The disk takes something again: of what was lost, the rows that had been begun are not pending for ever."""
        lost = [FinishedCompletion(id, "error", time.time(), error=LOST) for id in self._health.lost]
        self._health.lost.clear()
        await asyncio.gather(*(self._store.completions.finish([one]) for one in lost), return_exceptions=True)

    def _other_logprobs(self, sampling: Mapping[str, float]) -> str | None:
        if self.logprobs_of is None or (self.logprobs_of == "model" and changes_nothing(sampling)):
            return None
        return f"the backend's log-probs are of the {self.logprobs_of} alone"

    def _keep(self, text: str | None) -> str | None:
        return None if text is None else self._redactor.text(text)

    def _ends(self, found: dict[int, Reply], status: Status, error: str | None) -> list[FinishedCompletion]:
        ends: list[FinishedCompletion] = []
        for row in self._rows:
            try:
                ends.append(self._ended(row, found.get(row.choice), status, error))
            except Exception as failed:  # a member of an odd type must not cost the client its answer
                self._broken = self._broken or f"the answer could not be understood: {failed!r}"
                ends.append(self._ended(row, None, status, self._broken))
        return ends

    def _ended(self, row: NewCompletion, reply: Reply | None, status: Status, error: str | None) -> FinishedCompletion:
        if reply is None:
            missing = error or (None if status != "done" else "the backend sent no such choice")
            ended: Status = "error" if status == "done" else status
            return FinishedCompletion(
                row.id,
                ended,
                time.time(),
                error=self._keep(missing),
                inexact_reason=self._keep(self._broken),
                translated=self.translated,
                redacted=row.redacted,
            )
        text = reply.text
        orjson.dumps((text, reply.finish_reason, reply.usage))  # what the store takes; else TypeError
        if not isinstance(reply.finish_reason, str | None) or not isinstance(reply.usage, dict | None):
            self._broken = self._broken or "the backend's finish reason or usage is none"
            reply = replace(reply, finish_reason=None, usage=None)
        try:
            numbers = _packed(reply)
        except (TypeError, ValueError, OverflowError):  # what the store cannot take must not cost the client its answer
            self._broken = self._broken or "the backend sent token ids or log-probs that are none"
            numbers = _NONE
        said: set[str] = set()
        # All of it: the token ids have the reasoning too.
        clean = self._redactor.value(reply.message, said) is reply.message
        redacted = (*row.redacted, *places(reply=said)) if said else row.redacted
        cut = None if row.untrainable or numbers.prompt_ids is not None else why_cut(row.prompt, reply.usage)
        if row.choice == 0 and (line := self._health.cut.seen(cut)) is not None:
            log.warning("a prompt was cut", completion=row.id, why=cut)
            self._events.emit("problem", message=line)
        odd = reply.inexact_reason() or self.guessed or self._other_logprobs(row.sampling)
        odd = odd if cut is None else f"{CUT}{cut}"
        broken = self._broken and self._redactor.text(self._broken)  # our own words are not searched
        reason = broken or (INEXACT if redacted else odd)
        if redacted:  # its token ids would spell the secret out
            numbers = _NONE
        message = {**reply.message, "role": "assistant"}
        kept = self._redactor.message(canonical(message))
        return FinishedCompletion(
            id=row.id,
            status=status,
            finished_at=time.time(),
            reply=kept,
            thread=extend_thread(row.thread, message, self._redactor.message, kept),
            text=text if clean else self._redactor.text(text),
            finish_reason=reply.finish_reason and self._redactor.text(reply.finish_reason),
            usage=reply.usage and self._redactor.walked(reply.usage),
            prompt_token_ids=numbers.prompt_ids,
            token_ids=numbers.ids,
            logprobs=numbers.logprobs,
            pieces=numbers.pieces,
            logprobs_of=self.logprobs_of if numbers.logprobs is not None else None,
            exact=reason is None,
            inexact_reason=reason,
            error=error,
            translated=self.translated,
            untrainable=UNTRAINABLE if said else None,
            redacted=redacted,
            items=() if self.translated else reply.items,
        )


def _numbered(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if not isinstance(reply.index, int):
            raise TypeError(f"the index {reply.index!r} of a choice is no number")
    return replies


class _Numbers(NamedTuple):
    """Numbers of a reply as the store packs them: four bytes each, where a list of Python's has forty."""

    prompt_ids: array[int] | None
    ids: array[int] | None
    logprobs: array[float] | None
    pieces: list[bytes] | None


_NONE: Final = _Numbers(None, None, None, None)


def _packed(reply: Reply) -> _Numbers:
    """Raises TypeError, ValueError and OverflowError for what are not numbers."""
    prompt_ids, ids, logprobs = reply.prompt_token_ids, reply.token_ids, reply.logprobs
    if prompt_ids is ids is logprobs is None:
        return _NONE
    return _Numbers(
        None if prompt_ids is None else array(IDS, prompt_ids),
        None if ids is None else array(IDS, ids),
        None if logprobs is None else array(LOGPROBS, logprobs),
        reply.pieces if logprobs is not None else None,
    )
