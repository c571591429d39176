"""Group commit on PostgreSQL: one thread, one connection, as with SQLite.

All relays of a database write one after the other, by a lock that each transaction takes first. So an operation may
read, decide, and write, whatever another relay does, and `seq` is the order of the commits.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Final, cast

import structlog

from store.file.integrity import Integrity
from store.file.page_gaps import Gaps
from store.file.writer import Writer
from store.postgres import server
from store.postgres.connection import PostgresConnection

log = structlog.get_logger()

HUNG_S: Final = 15.0  # of a transaction; longer than it waits for another relay's


class PostgresWriter(Writer):
    def __init__(self, connection: PostgresConnection, url: str, integrity: Integrity) -> None:
        """Takes the connection over; it is closed by `stop`."""
        self._url = url
        self._postgres = connection
        super().__init__(cast(sqlite3.Connection, connection), integrity)

    @property
    def commit_s(self) -> float:
        """When the newest commit succeeded, by the monotonic clock."""
        return self._postgres.commit_s

    async def end_hung(self) -> None:
        """For ever: break a connection that answers no more, as of a server that is frozen. The thread goes on."""
        while True:
            await asyncio.sleep(1.0)
            if self._postgres.end_hung(HUNG_S):
                log.warning("the database has not answered in time; its connection is given up", seconds=HUNG_S)

    async def empty_log(self) -> bool:
        """Do nothing: PostgreSQL empties its log itself."""
        return True

    async def overwrite(self, gaps: Gaps) -> None:
        """Do nothing: PostgreSQL overwrites what was deleted as it uses its pages again."""

    def _ours(self, error: Exception) -> Exception:
        return server.away(self._url, error) if server.is_away(error) else super()._ours(error)

    def _checkpoint(self) -> None:
        """Do nothing: the server does it."""

    def _finish(self) -> None:
        """Do nothing, as above."""
