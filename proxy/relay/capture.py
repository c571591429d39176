"""One request's completions on their way into the store.

Owns: the rows of a request (one a choice), and the commit that the terminal event waits for. What an answer says is
answer_reader's.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, Final, NamedTuple

import orjson
import structlog

from proxy.backends.sampling_defaults import changes_nothing
from proxy.conversation.capture_health import Health
from proxy.conversation.conversations import canonical, extend_thread
from proxy.conversation.cut_prompts import CUT, why_cut
from proxy.conversation.modalities import more_than_text
from proxy.conversation.redaction import INEXACT, UNTRAINABLE, WORTH_A_THREAD, Redactor, places
from proxy.conversation.underway import AnswersInProgress
from proxy.core.events import Events
from proxy.core.metrics import Metrics
from proxy.core.offload import ITEM, length, off_loop_above
from proxy.core.sharing.shares import Room
from proxy.core.tasks import DelayedTask, Tasks
from proxy.dialects import CHAT, Dialect, Reply
from proxy.dialects.chat_form import reply_message
from proxy.relay.answer_reader import AnswerReader
from proxy.relay.context import choice_id
from store.captured.rows import IDS, LOGPROBS
from store.errors import DuplicateCompletion, StoreError, UnknownCompletion
from store.records import FinishedCompletion, NewCompletion, Requester, Status
from store.store import Store

log = structlog.get_logger()

BESIDE_S: Final = 1.0  # from the question to its row: a kill in between leaves no trace of it
UNREAD: Final = "unread_event"  # why a reply never trains whose text may lack something
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
        underway: AnswersInProgress,
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
        self._store = store
        self._metrics = metrics
        self._health = health
        self._redactor = redactor
        self._keepable = keepable
        self._events = events
        self._underway = underway
        self.reader = AnswerReader(dialect, tools, room)
        self.translated = False  # its answer comes as chat completions, and is said again
        self._n = n
        self.requester: Requester | None = None
        self.guessed: str | None = None  # why it is not known how the server samples, where it is not
        self.withheld: str | None = None  # what the server said to our wishes, where it was asked without them
        self.logprobs_of: str | None = None  # what the backend's log-probs are of (proxy.backends.base)
        self._rows: list[NewCompletion] = []
        self._tasks: Tasks
        self._row_of: MakesRow
        self._made_beside: asyncio.Task[None] | None = None
        self._unmade: Exception | None = None  # why there are no rows
        self._making: DelayedTask | None = None
        self._begun: asyncio.Future[None] | None = None  # ends when the rows are on disk or were not taken
        self._ending: asyncio.Future[Any] | None = None  # likewise, of the answer with its end

    def begin_beside(self, tasks: Tasks, row: MakesRow, *, at_once: bool) -> None:
        """Note that the question is on its way. Its rows are made `at_once`, while the backend works on it, or else
        BESIDE_S from now, when nobody waits for the answer's first byte. They are queued BESIDE_S from now. An answer
        that ends sooner is stored in one operation, with the rows that it has or that are made then."""
        self._tasks, self._row_of = tasks, row
        self._underway.begun(self.id, self)
        self._making = DelayedTask(tasks, BESIDE_S, f"begin-{self.id}", self._queue)
        if at_once:
            self._make()

    async def _queue(self) -> None:
        await self._made()
        self._begun = self._store.completions.begin(self._rows)  # the end of the request asks whether this failed

    def _make(self) -> None:
        """Make the rows, or have a task make them where that takes long, or the store has to be asked."""
        try:
            row = self._row_of()
            if isinstance(row, NewCompletion):
                self._number(row)
            else:
                self._made_beside = self._tasks.spawn(f"row-{self.id}", self._number_later(row))
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

    async def leave_open(self, backend_id: str) -> None:
        """Its answer is made in the background: the row stays pending, with the id by which the backend knows it."""
        await self.begin_now()
        try:
            if self._begun is None or self._begun.exception() is not None:
                raise StoreError(f"the request has no row ({self._unmade!r})")
            await self._store.items.name_response(self.id, backend_id)
        except (StoreError, sqlite3.IntegrityError) as error:
            self._not_stored(error)
        self._underway.ended(self.id)

    def adopt(self, row: NewCompletion) -> None:
        """Go on with a row that was left open; it is in the store."""
        self._number(row)
        self._begun = asyncio.get_running_loop().create_future()
        self._begun.set_result(None)

    def _number(self, row: NewCompletion) -> None:
        further_rows = (
            [replace(row, id=choice_id(self.id, i), choice=i) for i in range(1, self._n)] if self._n > 1 else ()
        )
        self._rows = [row, *further_rows]

    def replies(self) -> list[Reply]:
        """Replies so far."""
        return self.reader.replies()

    async def finish(self, status: Status, *, error: str | None = None) -> bool:
        """Commit what came; returns when it is on disk, or False where the disk did not take it. Whoever is cancelled
        here does not undo it."""
        stored = self._on_its_way(status, error)
        if stored is None:
            self._ending = ending = asyncio.ensure_future(self._finish(status, error))
            return await asyncio.shield(ending)
        self._ending = stored
        try:
            await asyncio.shield(stored)
        except StoreError:
            return False
        return True

    def _on_its_way(self, status: Status, error: str | None) -> asyncio.Future[None] | None:
        """The one operation that stores all of it, queued; None where anything has to be waited for before, as a row
        that was begun. So most answers need no task of their own."""
        if self._making is None or self._making.task is not None or self._health.lost:
            return None
        if not self._rows and self._made_beside is None and self._unmade is None:
            self._make()
        if not self._rows:
            return None
        replies, status, error = self._outcome(status, error)
        if self._size(replies) >= WORTH_A_THREAD:
            return None
        self._making.take_back()
        ends = self._ends(replies, status, error)
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

    async def _finish(self, status: Status, error: str | None) -> bool:
        try:
            return await self._finished(status, error)
        finally:
            self._underway.ended(self.id)

    async def _finished(self, status: Status, error: str | None) -> bool:
        try:
            await self._begun_or_made()
        except Exception as failed:
            return self._not_stored(RuntimeError(f"the request makes no row ({failed!r})"))
        replies, status, error = self._outcome(status, error)
        ends = await off_loop_above(WORTH_A_THREAD, self._size(replies), self._ends, replies, status, error)
        try:
            stored = await self._store_ends(ends)
        except StoreError as failed:
            return self._lost(ends, failed)
        if self._health.lost:
            await self._end_lost()
        return self._kept(status, stored)

    async def _begun_or_made(self) -> None:
        """Raises what making the rows raised."""
        if self._making is None:
            return
        self._making.take_back()
        await (self._made() if self._making.task is None else self._making.task)

    def _outcome(self, status: Status, error: str | None) -> tuple[dict[int, Reply], Status, str | None]:
        """The replies by their choices, and how it ended."""
        replies = self.replies()
        by_index = {reply.index: reply for reply in replies}
        if self._n == len(by_index) == 1:  # however its server numbers it
            by_index = {0: replies[0]}
        reader = self.reader
        if status == "done" and reader.failed:
            status, error = "error", reader.failed
        if status == "done" and not by_index:
            status, error = "error", error or reader.reason or "the backend answered nothing"
        if status == "done" and reader.gap is not None:
            status, error = "partial", f"{reader.gap}; its text may lack something"
        if reader.odd is not None:
            log.info("an answer was odd", completion=self.id, reason=self._keep(self._keepable(reader.odd)))
        return by_index, status, None if error is None else self._keep(self._keepable(error))

    def _size(self, replies: Mapping[int, Reply]) -> int:
        """Characters to look at. The prompt counts, too: whether it was cut is seen in all of it."""
        size = 0
        for row in self._rows:
            size += ITEM * len(row.prompt)
        for reply in replies.values():
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
        await asyncio.gather(*(self._store.completions.finish([end]) for end in lost), return_exceptions=True)

    def _lacking(self, reply: Reply) -> str | None:
        lacking = reply.inexact_reason()
        if lacking is None or self.withheld is None:
            return lacking
        return f"{lacking}, and refuses to: {self._keep(self._keepable(self.withheld))!r:.200}"

    def _other_logprobs(self, sampling: Mapping[str, float]) -> str | None:
        if self.logprobs_of is None or (self.logprobs_of == "model" and changes_nothing(sampling)):
            return None
        return f"the backend's log-probs are of the {self.logprobs_of} alone"

    def _keep(self, text: str | None) -> str | None:
        return None if text is None else self._redactor.text(text)

    def _ends(self, replies: dict[int, Reply], status: Status, error: str | None) -> list[FinishedCompletion]:
        ends: list[FinishedCompletion] = []
        for row in self._rows:
            try:
                ends.append(self._ended(row, replies.get(row.choice), status, error))
            except Exception as failed:  # a member of an odd type must not cost the client its answer
                self.reader.drop(f"the answer could not be understood: {failed!r}")
                ends.append(self._ended(row, None, status, self.reader.broken))
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
                inexact_reason=self._keep(self.reader.gap or self.reader.broken),
                translated=self.translated,
                redacted=row.redacted,
            )
        reply = replace(reply, message=reply_message(reply.message))
        text = reply.text
        orjson.dumps((text, reply.finish_reason, reply.usage))  # what the store takes; else TypeError
        if not isinstance(reply.finish_reason, str | None) or not isinstance(reply.usage, dict | None):
            self.reader.drop("the backend's finish reason or usage is none")
            reply = replace(reply, finish_reason=None, usage=None)
        try:
            numbers = _packed(reply)
        except (TypeError, ValueError, OverflowError):  # what the store cannot take must not cost the client its answer
            self.reader.drop("the backend sent token ids or log-probs that are none")
            numbers = _NONE
        texts: set[str] = set()
        # All of it: the token ids have the reasoning too.
        clean = self._redactor.value(reply.message, texts) is reply.message
        redacted = (*row.redacted, *places(reply=texts)) if texts else row.redacted
        cut = None if row.untrainable or numbers.prompt_ids is not None else why_cut(row.prompt, reply.usage)
        if row.choice == 0 and (line := self._health.cut.seen(cut)) is not None:
            log.warning("a prompt was cut", completion=row.id, why=cut)
            self._events.emit("problem", message=line)
        odd = self._lacking(reply) or self.guessed or self._other_logprobs(row.sampling)
        odd = odd if cut is None else f"{CUT}{cut}"
        broken = self._keep(self.reader.gap or self.reader.broken)  # our own words are not searched
        reason = broken or (INEXACT if redacted else odd)
        if reason is not None and self.reader.unknown is not None:
            reason = f"{reason}; {self._keep(self.reader.unknown)}"
        if (
            redacted or self.reader.gap is not None
        ):  # its token ids would spell the secret out, or are not those of the text
            numbers = _NONE
        message = {**reply.message, "role": "assistant"}
        stored = self._redactor.message(canonical(message))
        return FinishedCompletion(
            id=row.id,
            status=status,
            finished_at=time.time(),
            reply=stored,
            thread=extend_thread(row.thread, message, self._redactor.message, stored),
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
            untrainable=UNTRAINABLE if texts else UNREAD if self.reader.gap is not None else more_than_text([message]),
            redacted=redacted,
            items=() if self.translated else reply.items,
        )


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
    if logprobs is not None and not all(map(isfinite, logprobs)):
        raise ValueError("a log-prob that is not finite")
    return _Numbers(
        None if prompt_ids is None else array(IDS, prompt_ids),
        None if ids is None else array(IDS, ids),
        None if logprobs is None else array(LOGPROBS, logprobs),
        reply.pieces if logprobs is not None else None,
    )
