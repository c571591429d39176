"""The rows of a request, one a choice, from the moment its question leaves until its answer ends.

Owns when they are made and when they go to the disk. Nobody waits for either: they are made while the backend works,
and queued RECORD_S after the question left. An answer that ends sooner takes them back, and is stored with them in one
operation. A kill in between leaves no trace of that request. Not here: what is in a row (request_row), how the answer
ended (capture).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

import structlog

from proxy.core.tasks import DelayedTask, Tasks
from proxy.relay.context import choice_id
from store.errors import DuplicateCompletion, StoreError
from store.records import NewCompletion
from store.store import Store

log = structlog.get_logger()

RECORD_S: Final = 1.0  # from the question to its rows in the writer's queue
MakesRow = Callable[[], NewCompletion | Awaitable[NewCompletion]]  # at once, where nothing has to be waited for


class RecordState(Enum):
    UNASKED = auto()  # no question has left
    DUE = auto()  # it has left: the rows are queued RECORD_S later
    QUEUED = auto()  # they are on their way to the disk, or there
    TAKEN_BACK = auto()  # the answer ended first: they are stored with it


class PendingRecord:
    def __init__(self, store: Store, id: str, choices: int) -> None:
        self.id = id
        self.state = RecordState.UNASKED
        self.rows: list[NewCompletion] = []  # empty until they are made
        self.problem: Exception | None = None  # the reason why they could not be made
        self.stored: asyncio.Future[None] | None = None  # ends when they are on disk, or were not taken
        self._store = store
        self._choices = choices
        self._make_row: MakesRow
        self._making: asyncio.Task[None] | None = None  # where making them takes long
        self._queueing: DelayedTask | None = None
        self._tasks: Tasks

    def follow(self, tasks: Tasks, make_row: MakesRow, *, at_once: bool) -> None:
        """The question has left. The rows are made `at_once`, while the backend works on it. Else they are made when
        they are due, or when the answer ends: then nobody waits for the answer's first byte."""
        self._tasks, self._make_row = tasks, make_row
        self.state = RecordState.DUE
        self._queueing = DelayedTask(tasks, RECORD_S, f"begin-{self.id}", self._begin_queueing)
        if at_once:
            self._make()

    async def store(self, row: NewCompletion) -> None:
        """The rows, stored before the question leaves. Raises DuplicateCompletion."""
        self._number(row)
        self.state = RecordState.QUEUED
        try:
            self.stored = self._store.completions.begin(self.rows)
            await asyncio.shield(self.stored)  # it is stored whether or not its client stays
        except DuplicateCompletion:
            raise
        except StoreError as error:
            log.error("capture is failing", completion=self.id, error=str(error))

    def adopt(self, row: NewCompletion) -> None:
        """Go on with a row that was left open; it is in the store."""
        self._number(row)
        self.state = RecordState.QUEUED
        self.stored = asyncio.get_running_loop().create_future()
        self.stored.set_result(None)

    @property
    def is_duplicate(self) -> bool:
        """Tell whether the disk refused the rows because their id is another request's. Call it once they are
        stored."""
        return self.stored is not None and isinstance(self.stored.exception(), DuplicateCompletion)

    @property
    def is_stored(self) -> bool:
        return self.stored is not None and self.stored.done() and self.stored.exception() is None

    async def store_now(self) -> None:
        """Have the rows stored, if they were due; what goes wrong is told when the answer ends."""
        if self._queueing is not None:
            if self.state is RecordState.DUE:
                self._queueing.begin()
            if self._queueing.task is not None:
                await asyncio.wait({self._queueing.task})
        if self.stored is not None:
            await asyncio.wait({self.stored})

    def made_now(self) -> list[NewCompletion]:
        """The rows, where nothing has to be waited for; else none."""
        if not self.rows and self._making is None and self.problem is None:
            self._make()
        return self.rows

    def take_back(self) -> None:
        """The answer has ended: rows that were due are stored with it."""
        if self._queueing is not None and self._queueing.take_back():
            self.state = RecordState.TAKEN_BACK

    async def settle(self) -> None:
        """Have the rows, queued or taken back. Raises what making them raised."""
        if self._queueing is None:
            return
        self.take_back()
        await (self._await_rows() if self._queueing.task is None else self._queueing.task)

    def _begin_queueing(self) -> Coroutine[Any, Any, None]:
        self.state = RecordState.QUEUED
        return self._queue()

    async def _queue(self) -> None:
        await self._await_rows()
        self.stored = self._store.completions.begin(self.rows)  # the end of the request asks whether this failed

    async def _await_rows(self) -> None:
        """Have the rows. Raises what making them raised."""
        if not self.made_now() and self._making is not None:
            await asyncio.shield(self._making)
        if self.problem is not None:
            raise self.problem

    def _make(self) -> None:
        """Make the rows, or have a task make them where that takes long, or the store has to be asked."""
        try:
            row = self._make_row()
            if isinstance(row, NewCompletion):
                self._number(row)
            else:
                self._making = self._tasks.spawn(f"row-{self.id}", self._number_later(row))
        except Exception as error:  # it must not cost the client its answer
            self.problem = error

    async def _number_later(self, row: Awaitable[NewCompletion]) -> None:
        try:
            self._number(await row)
        except Exception as error:
            self.problem = error

    def _number(self, row: NewCompletion) -> None:
        self.rows = [row]
        for choice in range(1, self._choices):
            self.rows.append(replace(row, id=choice_id(self.id, choice), choice=choice))
