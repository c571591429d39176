"""The connection that reads: aiosqlite, read-only. It sees everything whose commit was awaited before."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite


class Reader:
    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._db = connection
        self._lock = asyncio.Lock()  # a query of one caller must not fall into the snapshot of another

    @classmethod
    async def open(cls, path: Path) -> Reader:
        uri = f"file:{quote(os.fspath(path))}?mode=ro"
        opening = aiosqlite.connect(uri, uri=True, isolation_level=None)
        # A daemon, like the writer, so that a process that never called close can still end.
        opening._thread.daemon = True
        db = await opening
        db.row_factory = sqlite3.Row
        await db.execute("PRAGMA query_only = ON")
        return cls(db)

    async def close(self) -> None:
        async with self._lock:
            await self._db.close()

    async def rows(self, sql: str, parameters: Any = ()) -> list[sqlite3.Row]:
        async with self._lock:
            return list(await self._db.execute_fetchall(sql, parameters))

    async def row(self, sql: str, parameters: Any = ()) -> sqlite3.Row | None:
        return next(iter(await self.rows(sql, parameters)), None)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[aiosqlite.Connection]:
        """Several queries that see the database at one moment."""
        async with self._lock:
            try:
                await self._db.execute("BEGIN")  # in here: it begins also where its caller is cancelled meanwhile
                yield self._db
            finally:
                with suppress(sqlite3.OperationalError):  # it had not begun
                    await self._db.execute("ROLLBACK")
