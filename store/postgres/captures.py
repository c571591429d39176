"""Completions of a relay whose database may be away: an answer is stored there, or on this relay's own disk.

Owns when the one and when the other. An answer that the database has not taken in time, or has no room for, is
spooled, and counts as stored. While any are spooled, later ones queue behind them, so that a conversation keeps its
order. Not here: the file (spool), what becomes of a spooled answer (deliveries).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import structlog

from store.captured import completions
from store.captured.completions import CompletionStore
from store.errors import StoreAway, StoreError, StoreFull
from store.file.part import Writes
from store.file.reader import Reader
from store.postgres.deliveries import deliver
from store.postgres.spool import Spool, SpooledAnswers
from store.records import FinishedCompletion, NewCompletion

log = structlog.get_logger()

WAIT_S: Final = 3.0  # for the database to take an answer, while its client waits for the end of its stream
RETRY_S: Final = 1.0  # between two tries to deliver
MOST_OPEN: Final = 20_000  # requests under way whose rows are remembered
_TAKES_NOTHING: Final = (StoreAway, StoreFull)  # the database, now: the same answer is stored later
_NOTE_OWNER: Final = "INSERT INTO relay_rows VALUES (?, ?) ON CONFLICT DO NOTHING"


class SharedCompletionStore(CompletionStore):
    def __init__(self, reader: Reader, writer: Writes, spool: Spool, relay: str) -> None:
        """`relay`: the name of this one in the database."""
        super().__init__(reader, writer)
        self.spool = spool
        self._relay = relay
        self._open_rows: OrderedDict[str, NewCompletion] = OrderedDict()
        self._delivering = asyncio.Lock()
        self._has_some = asyncio.Event()
        self._has_some.set()

    def begin(self, rows: Sequence[NewCompletion]) -> asyncio.Future[None]:
        for new in rows:
            self._open_rows[new.id] = new
        while len(self._open_rows) > MOST_OPEN:
            self._open_rows.popitem(last=False)
        owners = [(new.id, self._relay) for new in rows]

        def begin(db: sqlite3.Connection) -> None:
            completions.begin(db, rows)
            db.executemany(_NOTE_OWNER, owners)

        future = self._writer.submit(begin)
        future.add_done_callback(lambda finished: finished.cancelled() or finished.exception())
        return future

    async def finish(self, rows: Sequence[FinishedCompletion]) -> None:
        answers = [(new, end) for end in rows if (new := self._open_rows.pop(end.id, None)) is not None]
        if len(answers) < len(rows) or self._goes_to_database():
            stored = self._writer.submit(lambda db: completions.finish(db, rows))
            try:
                await asyncio.wait({stored}, timeout=WAIT_S)
                if not stored.done():
                    raise StoreAway("The database has not answered in time; this was not stored.")
                stored.result()
                return
            except _TAKES_NOTHING:
                if len(answers) < len(rows):  # begun before this relay started: they stay pending
                    raise
        await self._spool(answers)

    def record(self, new: Sequence[NewCompletion], finished: Sequence[FinishedCompletion]) -> asyncio.Future[None]:
        if self._goes_to_database():
            stored = super().record(new, finished)
            return asyncio.ensure_future(self._recorded(stored, new, finished))
        return asyncio.ensure_future(self._spool(list(zip(new, finished, strict=True))))

    async def _recorded(
        self, stored: asyncio.Future[None], new: Sequence[NewCompletion], finished: Sequence[FinishedCompletion]
    ) -> None:
        await asyncio.wait({stored}, timeout=WAIT_S)
        if stored.done():
            if not isinstance(stored.exception(), _TAKES_NOTHING):
                stored.result()
                return
        else:  # whatever becomes of it there, its id is stored once
            stored.add_done_callback(lambda late: late.cancelled() or late.exception())
        await self._spool(list(zip(new, finished, strict=True)))

    def _goes_to_database(self) -> bool:
        return self.spool.is_empty

    async def _spool(self, answers: Sequence[tuple[NewCompletion, FinishedCompletion]]) -> None:
        """Raises StoreFull, StoreError."""
        await self.spool.append(answers)
        self._has_some.set()

    # Delivery

    async def run(self) -> None:
        """Deliver what is spooled as soon as the database is there, for ever."""
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            try:
                await self.deliver()
            except _TAKES_NOTHING:
                self._has_some.set()
                await asyncio.sleep(RETRY_S)
            except (StoreError, OSError) as error:
                log.error("answers are spooled, and not delivered yet", error=str(error))
                self._has_some.set()
                await asyncio.sleep(10 * RETRY_S)

    async def deliver(self) -> int:
        """Deliver all that is spooled; how many answers. Raises StoreAway, StoreFull."""
        count = 0
        async with self._delivering:
            while not self.spool.is_empty:
                batch = await self.spool.next()
                if batch.end == self.spool.delivered:  # one is being written
                    await asyncio.sleep(0.01)
                    continue
                await self._deliver(batch)
                await self.spool.note_delivered(batch)
                count += len(batch.answers)
        if count:
            log.info("spooled answers are delivered", answers=count)
        return count

    async def _deliver(self, batch: SpooledAnswers) -> None:
        try:
            await self._writer.submit(lambda db: deliver(db, batch.answers))
        except _TAKES_NOTHING:
            raise
        except StoreError as error:
            if len(batch.answers) == 1:
                self.spool.keep_refused(batch, str(error))
                return
            for answer, line in zip(batch.answers, batch.lines, strict=True):
                await self._deliver(SpooledAnswers([answer], [line], batch.end))
