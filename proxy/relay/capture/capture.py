"""The completions of one request, from its question to the commit that the terminal event waits for.

Owns that commit, and what becomes of it where the disk does not take it. Not here: the rows before the answer has ended
(pending_record), what the answer says (answer_reader) and how that is stored (outcome).
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from proxy.conversation.capture_health import Health
from proxy.conversation.redaction import WORTH_A_THREAD, Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.core.events import Events
from proxy.core.metrics import Metrics
from proxy.core.offload import ITEM, length, off_loop_above
from proxy.core.sharing.shares import Room
from proxy.core.tasks import Tasks
from proxy.dialects import CHAT, Dialect, Reply
from proxy.relay.capture.answer_reader import AnswerReader
from proxy.relay.capture.outcome import AnswerOutcome, AnswerSource
from proxy.relay.capture.pending_record import MakesRow, PendingRecord, RecordState
from proxy.telemetry.request_trace import RequestTrace
from store.errors import StoreError, UnknownCompletion
from store.records import FinishedCompletion, NewCompletion, Requester, Status
from store.store import Store

log = structlog.get_logger()

LOST: Final = "the disk did not take this answer; it was relayed"


class CaptureServices(NamedTuple):
    """Things that every capture of one proxy works with."""

    store: Store
    metrics: Metrics
    health: Health
    events: Events
    redactor: Redactor
    underway: AnswersInProgress


class Capture:
    """The completions of one request, from sent to committed."""

    def __init__(
        self,
        services: CaptureServices,
        id: str,
        n: int,
        keepable: Callable[[str], str] = str,
        dialect: Dialect = CHAT,
        tools: Sequence[Mapping[str, Any]] | None = None,
        room: Room | None = None,
    ) -> None:
        """`keepable`: what may be stored of an error; `tools`: those that the request offers, in chat form; `room`: for
        what is folded of a stream."""
        self.id = id
        self.requester: Requester | None = None
        self.trace = RequestTrace(0.0)  # whose marks are set; its own, until the request's takes its place
        self.reader = AnswerReader(dialect, tools, room, n)
        self.source = AnswerSource()
        self._store = services.store
        self._metrics = services.metrics
        self._health = services.health
        self._events = services.events
        self._underway = services.underway
        self._choices = n
        self._record = PendingRecord(services.store, id, n)
        self._outcome = AnswerOutcome(
            self.reader, self.source, services.redactor, services.health, services.events, keepable
        )
        self._commit: asyncio.Future[Any] | None = None  # of the answer with its end

    def follow(self, tasks: Tasks, make_row: MakesRow, *, at_once: bool) -> None:
        """The question has left; `at_once`: its rows are made while the backend works on it."""
        self._underway.add(self.id, self)
        self._record.follow(tasks, make_row, at_once=at_once)

    async def begin(self, row: NewCompletion) -> None:
        """The rows, stored before the question leaves. Raises DuplicateCompletion."""
        await self._record.store(row)
        self._underway.add(self.id, self)

    async def begin_now(self) -> None:
        """Have its rows stored: somebody has said something about this answer while it comes."""
        await self._record.store_now()
        if self._commit is not None:
            await asyncio.wait({self._commit})

    async def given_up(self, error: str) -> bool:
        """Its client left while `begin` stored the rows: they are not pending for ever. Tell whether there are any; an
        id that exists is of another request."""
        if self._record.stored is None:
            return False
        await asyncio.wait({self._record.stored})
        if self._record.is_duplicate:
            return False
        await self.finish("partial", error=error)
        return True

    async def leave_open(self, backend_id: str) -> None:
        """Its answer is made in the background: the row stays pending, with the id by which the backend knows it."""
        await self.begin_now()
        try:
            if not self._record.is_stored:
                raise StoreError(f"the request has no row ({self._record.problem!r})")
            await self._store.items.name_response(self.id, backend_id)
        except (StoreError, sqlite3.IntegrityError) as error:
            self._note_failure(error)
        self._underway.remove(self.id)

    def adopt(self, row: NewCompletion) -> None:
        """Go on with a row that was left open; it is in the store."""
        self._record.adopt(row)

    def replies(self) -> list[Reply]:
        """Replies so far."""
        return self.reader.replies()

    async def finish(self, status: Status, *, error: str | None = None) -> bool:
        """Commit what came; returns when it is on disk, or False where the disk did not take it. Whoever is cancelled
        here does not undo it."""
        commit = self._commit_at_once(status, error)
        if commit is None:
            self._commit = slow_commit = asyncio.ensure_future(self._commit_later(status, error))
            return await asyncio.shield(slow_commit)
        self._commit = commit
        try:
            await asyncio.shield(commit)
        except StoreError:
            return False
        return True

    def end_of(self, row: NewCompletion) -> FinishedCompletion:
        """The end of an answer that rlproxy asked for itself; its caller stores both."""
        replies, status, error = self._ending("done", None)
        (end,) = self._outcome.ends([row], replies, status, error)
        return end

    def _commit_at_once(self, status: Status, error: str | None) -> asyncio.Future[None] | None:
        """The one operation that stores all of it, queued; None where anything has to be waited for before. So most
        answers need no task of their own."""
        record = self._record
        if record.state is not RecordState.DUE or self._health.lost or not record.made_now():
            return None
        replies, status, error = self._ending(status, error)
        if self._size(replies) >= WORTH_A_THREAD:
            return None
        record.take_back()
        ends = self._outcome.ends(record.rows, replies, status, error)
        self.trace.note_storing(record.rows, ends)
        commit = self._store.completions.record(record.rows, ends)
        commit.add_done_callback(partial(self._committed, status, ends))
        return commit

    def _committed(self, status: Status, ends: Sequence[FinishedCompletion], commit: asyncio.Future[None]) -> None:
        self._underway.remove(self.id)
        if commit.cancelled():
            return
        if (failure := commit.exception()) is None:
            self._note_commit(status, len(ends))
        elif isinstance(failure, StoreError):
            self._note_loss(ends, failure)

    async def _commit_later(self, status: Status, error: str | None) -> bool:
        try:
            try:
                await self._record.settle()
            except Exception as failure:
                return self._note_failure(RuntimeError(f"the request makes no row ({failure!r})"))
            replies, status, error = self._ending(status, error)
            ends = await off_loop_above(
                WORTH_A_THREAD, self._size(replies), self._outcome.ends, self._record.rows, replies, status, error
            )
            self.trace.note_storing(self._record.rows, ends)
            try:
                count = await self._store_ends(ends)
            except StoreError as failure:
                return self._note_loss(ends, failure)
            if self._health.lost:
                await self._end_lost()
            return self._note_commit(status, count)
        finally:
            self._underway.remove(self.id)

    def _ending(self, status: Status, error: str | None) -> tuple[dict[int, Reply], Status, str | None]:
        """The replies by their choices, and how the answer ended."""
        replies = self.replies()
        by_index = {reply.index: reply for reply in replies}
        if self._choices == len(by_index) == 1:  # however its server numbers it
            by_index = {0: replies[0]}
        reader = self.reader
        if status == "done" and reader.failed:
            status, error = "error", reader.failed
        if status == "done" and not by_index:
            status, error = "error", error or reader.reason or "the backend answered nothing"
        if status == "done" and reader.gap is not None:
            status, error = "partial", f"{reader.gap}; its text may lack something"
        if reader.odd is not None:
            log.info("an answer was odd", completion=self.id, reason=self._outcome.message(reader.odd))
        return by_index, status, self._outcome.message(error)

    def _size(self, replies: Mapping[int, Reply]) -> int:
        """Characters to look at. The prompt counts, too: whether it was cut is seen in all of it."""
        size = 0
        for row in self._record.rows:
            size += ITEM * len(row.prompt)
        for reply in replies.values():
            size += length(reply.message)
        return size

    async def _store_ends(self, ends: Sequence[FinishedCompletion]) -> int:
        """How many were stored; those that were forgotten while they ran stay forgotten."""
        if self._record.stored is not None:
            try:
                await self._store.completions.finish(ends)
                return len(ends)
            except UnknownCompletion:
                if self._record.is_stored:  # before: what is gone now, somebody has deleted
                    return sum([await self._is_still_there(end) for end in ends])
        await self._store.completions.record(self._record.rows, ends)  # it ended at once, or the disk was full before
        return len(ends)

    async def _is_still_there(self, end: FinishedCompletion) -> bool:
        try:
            await self._store.completions.finish([end])
        except UnknownCompletion:
            return False
        return True

    def _note_commit(self, status: Status, count: int) -> bool:
        self.trace.note_stored()
        self._health.problem = None
        self._metrics.captured.labels(status).inc(count)
        self._health.turns += status == "done" and self._record.rows[0].turn == "main"
        self._events.note("captured")
        return True

    def _note_loss(self, ends: Sequence[FinishedCompletion], failure: StoreError) -> bool:
        self._health.lost.extend(end.id for end in ends)
        return self._note_failure(failure)

    def _note_failure(self, failure: Exception) -> bool:
        self._metrics.not_stored.inc(self._choices)
        self._health.problem = f"Answers are relayed but not captured: {failure}"
        log.error("completion not stored", completion=self.id, error=str(failure))
        return False

    async def _end_lost(self) -> None:
        """The disk takes something again: of what was lost, the rows that had been begun are not pending for ever."""
        lost = [FinishedCompletion(id, "error", time.time(), error=LOST) for id in self._health.lost]
        self._health.lost.clear()
        await asyncio.gather(*(self._store.completions.finish([end]) for end in lost), return_exceptions=True)
