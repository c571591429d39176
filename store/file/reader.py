"""The connection that reads: aiosqlite, read-only. It sees everything whose commit was awaited before."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiosqlite

from store.file import driver
from store.file.db_key import Secret
from store.file.integrity import Integrity

CHUNK: Final = 64  # rows at once where a cursor is iterated, aiosqlite's own default


class Reader:
    def __init__(self, connection: aiosqlite.Connection, integrity: Integrity | None = None) -> None:
        self._db = connection
        self._integrity = integrity
        self._lock = asyncio.Lock()  # a query of one caller must not fall into the snapshot of another

    @classmethod
    async def open(cls, path: Path, secret: Secret | None = None, integrity: Integrity | None = None) -> Reader:
        """`integrity` is told of damage that is met; then StoreDamaged is raised."""
        # aiosqlite.connect would call sqlite3.connect; its Connection takes any connector.
        opening = aiosqlite.Connection(lambda: driver.connect(path, secret, read_only=True, with_names=True), CHUNK)
        # A daemon, like the writer, so that a process that never called close can still end.
        opening._thread.daemon = True
        db = await opening
        await db.execute("PRAGMA query_only = ON")
        return cls(db, integrity)

    async def close(self) -> None:
        async with self._lock:
            await self._db.close()

    async def rows(self, sql: str, parameters: Any = ()) -> list[sqlite3.Row]:
        async with self._lock:
            with self._reporting_damage():
                return list(await self._db.execute_fetchall(sql, parameters))

    async def row(self, sql: str, parameters: Any = ()) -> sqlite3.Row | None:
        return next(iter(await self.rows(sql, parameters)), None)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[aiosqlite.Connection]:
        """Several queries that see the database at one moment."""
        async with self._lock:
            try:
                with self._reporting_damage():
                    await self._db.execute("BEGIN")  # in here: it begins also where its caller is cancelled meanwhile
                    yield self._db
            finally:
                with suppress(*driver.errors()):  # it had not begun
                    await self._db.execute("ROLLBACK")

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except driver.errors() as error:
            if self._integrity is not None and (damage := self._integrity.note_damage(error)) is not None:
                raise damage from error
            raise
