"""One thread, one connection, group commit: all who wait share one fsync.

Operations are plain callables on the connection; rows of one kind that come one after the other are one operation of
a group. One that fails undoes only itself: where one does, the group is undone and run again with a savepoint each.
Nobody hears of success before the commit. So an operation may be run twice: it must do nothing but read and write the
database.

While the file's integrity is in doubt the log is not moved into it; once it is damaged nothing is written any more.

Nobody else may write or checkpoint: before 3.51.3, SQLite's log can lose what was committed where two connections do.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from store.errors import NotOverwritten, StoreAway, StoreClosed, StoreDamaged, translated
from store.file.driver import errors
from store.file.integrity import Integrity
from store.file.page_gaps import Gaps
from store.file.schema import CHECKPOINT_PAGES

T = TypeVar("T")
R = TypeVar("R")

GROUP = 256  # most operations in one commit: a long queue must not make its first wait for its last
ROOM = 1024  # operations that wait, before those who would bring more have to
CHECKPOINT_CHANGES = 4000  # rows between two checkpoints, about 16 MiB of WAL at the usual size of a completion

NOT_YET = "What was forgotten is deleted; copies in gaps of the database are overwritten once the check of it is over."


@dataclass(slots=True)
class _QueuedOperation:
    operation: Callable[..., Any]  # on the connection, and on `rows` where there are some
    future: asyncio.Future[Any]
    rows: Sequence[Any] | None = None

    def run(self, db: sqlite3.Connection) -> Any:
        return self.operation(db) if self.rows is None else self.operation(db, self.rows)

    @property
    def shared_operation(self) -> Callable[..., Any] | None:
        """The call that others of a group may share with it; None: it has one of its own."""
        return None if self.rows is None else self.operation


@dataclass(slots=True)
class _Outcome:
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class _Slice:
    gaps: Gaps
    first: int  # page
    following: int | None = None  # page to go on with
    error: Exception | None = field(default_factory=lambda: NotOverwritten(NOT_YET))  # until it was done


class Writer:
    def __init__(self, connection: sqlite3.Connection, integrity: Integrity) -> None:
        """Takes the connection over; it is closed by `stop`."""
        self.commits = 0
        self._db = connection
        self._integrity = integrity
        self._trusted = False  # until the file may be written; then SQLite may checkpoint by itself, too
        self._checkpointed = 0
        self._emptied: bool | None = True  # None: the log is to be emptied at the next checkpoint
        self._slice: _Slice | None = None  # what is to be overwritten at the next checkpoint
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_QueuedOperation | None] = SimpleQueue()
        self._handing: list[_QueuedOperation] = []  # handed to the thread at the end of this turn of the loop
        self._room = asyncio.Event()
        self._stopping = False
        # A daemon, so that a process that never called stop can still end; what was acknowledged is on disk.
        self._thread = Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue an operation now; the future ends when it is on disk or has failed."""
        queued = _QueuedOperation(operation, self._loop.create_future())
        if not self._refuses(queued):
            self._hand_over()
            self._queue.put(queued)
        return queued.future

    def submit_rows(
        self, store_rows: Callable[[sqlite3.Connection, Sequence[R]], None], rows: Sequence[R]
    ) -> asyncio.Future[None]:
        """Queue rows; `store_rows` stores them with those of others that come in this turn of the loop.

        A thread that the first of them woke would commit once for it and once for the others.
        """
        queued = _QueuedOperation(store_rows, self._loop.create_future(), rows)
        if not self._refuses(queued):
            if not self._handing:
                self._loop.call_soon(self._hand_over)
            self._handing.append(queued)
        return queued.future

    def _refuses(self, queued: _QueuedOperation) -> bool:
        refusal: Exception | None = self._integrity.refusal
        if self._stopping:
            refusal = StoreClosed("The store is closed, this was not stored.")
        if refusal is not None:
            queued.future.set_exception(refusal)
        return refusal is not None

    def _hand_over(self) -> None:
        for queued in self._handing:
            self._queue.put(queued)
        self._handing.clear()

    @property
    def waiting(self) -> int:
        return self._queue.qsize() + len(self._handing)

    async def room(self) -> None:
        """Returns once fewer than ROOM operations wait. Clients that leave and ask again would fill the memory, where
        the disk is slower than they are."""
        while self._queue.qsize() + len(self._handing) >= ROOM:
            self._room.clear()
            await self._room.wait()

    def wake(self) -> None:
        """Have the log looked at: it may go into the file now."""
        if not self._stopping:
            self.submit(lambda db: None)

    async def empty_log(self) -> bool:
        """Move the whole WAL into the database and cut it to nothing. False where a reader was in the way, or the file
        is still being checked: then it is done as soon as that is over."""
        await self.submit(_order_emptying(self))
        await self.submit(lambda db: None)  # begun after the checkpoint that follows the first
        return bool(self._emptied)

    async def overwrite(self, gaps: Gaps) -> None:
        """Overwrite what SQLite has left in gaps of the file, a slice between two commits. Raises NotOverwritten,
        StoreError."""
        page: int | None = 0
        while page is not None:
            slice = _Slice(gaps, page)
            await self.submit(_order_slice(self, slice))
            await self.submit(lambda db: None)  # begun after the checkpoint that follows the first
            if slice.error is not None:
                raise slice.error
            page = slice.following

    async def stop(self) -> None:
        """Refuse new operations, end those that are queued, close the connection."""
        self._end()
        await asyncio.to_thread(self._thread.join)

    def end_at_once(self, within_s: float) -> bool:
        """The same where the loop is about to go: blocks until the thread has ended, False if it takes longer."""
        self._end()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _end(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._hand_over()
            self._queue.put(None)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            outcomes = self._commit(group) if group else []
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                self._loop.call_soon_threadsafe(self._tell, outcomes)
            del group, outcomes  # an idle writer keeps no conversation in memory
            self._checkpoint()
        self._finish()
        self._db.close()

    def _finish(self) -> None:
        if self._integrity.state == "sound":
            with contextlib.suppress(*errors()):
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _tell(self, outcomes: list[_Outcome]) -> None:
        for outcome in outcomes:
            if outcome.future.done():  # its caller was cancelled
                continue
            if outcome.error is not None:
                outcome.future.set_exception(outcome.error)
            else:
                outcome.future.set_result(outcome.result)
        self._room.set()

    def _next_group(self) -> tuple[list[_QueuedOperation], bool]:
        """Wait for one operation, then take all that came meanwhile."""
        group: list[_QueuedOperation] = []
        entry = self._queue.get()
        while entry is not None:
            group.append(entry)
            if len(group) == GROUP:
                return group, False
            try:
                entry = self._queue.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_QueuedOperation]) -> list[_Outcome]:
        if (refusal := self._integrity.refusal) is not None:
            return [_Outcome(queued.future, error=refusal) for queued in group]
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except errors() as error:  # another program holds the database: trying each would only take longer
            ours = self._ours(error)
            return [_Outcome(queued.future, error=ours) for queued in group]
        try:
            outcomes = [outcome for run in _runs(group) for outcome in self._run_at_once(run)]
            self._db.execute("COMMIT")
        except Exception as error:
            self._undo()
            ours = self._ours(error)
            if len(group) == 1 or isinstance(ours, (StoreDamaged, StoreAway)):
                return [_Outcome(queued.future, error=ours) for queued in group]
            return self._commit_singly(group)
        self.commits += 1
        return outcomes

    def _run_at_once(self, run: list[_QueuedOperation]) -> list[_Outcome]:
        if len(run) == 1:
            return [_Outcome(run[0].future, result=run[0].run(self._db))]
        run[0].operation(self._db, [row for queued in run for row in queued.rows or ()])
        return [_Outcome(queued.future) for queued in run]

    def _commit_singly(self, group: list[_QueuedOperation]) -> list[_Outcome]:
        """The same where one of them fails: the others shall not."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            outcomes = [self._run(queued) for queued in group]
            self._db.execute("COMMIT")
        except errors() as error:
            self._undo()
            if isinstance(ours := self._ours(error), StoreAway):
                return [_Outcome(queued.future, error=ours) for queued in group]
            # One of them may be too large for the disk while the others still fit: each on its own, then.
            return [outcome for queued in group for outcome in self._commit([queued])]
        self.commits += 1
        return outcomes

    def _undo(self) -> None:
        if self._db.in_transaction:
            with contextlib.suppress(*errors()):
                self._db.execute("ROLLBACK")

    def _run(self, queued: _QueuedOperation) -> _Outcome:
        self._db.execute("SAVEPOINT operation")
        try:
            outcome = _Outcome(queued.future, result=queued.run(self._db))
        except Exception as error:
            if not self._db.in_transaction:
                raise  # SQLite has undone the whole group
            self._db.execute("ROLLBACK TO operation")
            outcome = _Outcome(queued.future, error=self._ours(error))
        self._db.execute("RELEASE operation")
        return outcome

    def _ours(self, error: Exception) -> Exception:
        """The error as its caller is told it; one that tells of damage ends all writing."""
        return self._integrity.note_damage(error) or (translated(error) if isinstance(error, errors()) else error)

    def _checkpoint(self) -> None:
        """Move the WAL into the database between commits, when nobody waits for it."""
        if self._integrity.state != "sound":
            return
        if not self._trusted:
            self._trusted = True
            self._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        if self._emptied is None:
            self._emptied = False
            with contextlib.suppress(*errors()):
                self._emptied = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        if self._slice is not None:
            self._overwrite(self._slice)
            self._slice = None
        if self._db.total_changes - self._checkpointed >= CHECKPOINT_CHANGES:
            self._checkpointed = self._db.total_changes
            with contextlib.suppress(*errors()):  # the WAL keeps all of it; the next one tries again
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _overwrite(self, slice: _Slice) -> None:
        try:
            slice.following, slice.error = slice.gaps.overwrite(self._db, slice.first), None
        except errors(NotOverwritten) as error:
            ours = self._ours(error)
            slice.error = ours if isinstance(ours, (StoreDamaged, NotOverwritten)) else NotOverwritten(str(ours))


def _runs(group: list[_QueuedOperation]) -> list[list[_QueuedOperation]]:
    """Those that share one call, in the order in which they came."""
    runs: list[list[_QueuedOperation]] = []
    for queued in group:
        if runs and queued.shared_operation is not None and queued.shared_operation is runs[-1][0].shared_operation:
            runs[-1].append(queued)
        else:
            runs.append([queued])
    return runs


def _order_slice(writer: Writer, slice: _Slice) -> Callable[[sqlite3.Connection], None]:
    def order(db: sqlite3.Connection) -> None:
        writer._slice = slice

    return order


def _order_emptying(writer: Writer) -> Callable[[sqlite3.Connection], None]:
    def order(db: sqlite3.Connection) -> None:
        writer._emptied = None

    return order
