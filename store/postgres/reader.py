"""Connections that read from PostgreSQL, in the form of the store's reader.

What was awaited before is seen: a commit is known to all connections. Not here: SQL (translation), values (values).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import aiosqlite
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from store.file.reader import Reader
from store.postgres import server
from store.postgres.translation import translate
from store.postgres.values import adapt, make_rows

CONNECTIONS: Final = 4
WAIT_S: Final = 2.0  # for a connection
READ_S: Final = 30.0  # for an answer, after which the server counts as away
AWAY_S: Final = 1.0  # after a query has met nobody, others do not wait to find out the same
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_Connection = psycopg.AsyncConnection[Any]


class PostgresReader(Reader):
    def __init__(self, url: str, pool: AsyncConnectionPool[_Connection]) -> None:
        self._url = url
        self._pool = pool
        self._failure_s = -AWAY_S  # monotonic, when the server was last not there
        self.commit_s: Callable[[], float] = lambda: 0.0  # monotonic, when something was last written
        self.is_known_away: Callable[[], bool] = lambda: False  # by who listens to the server

    @classmethod
    async def connect(cls, url: str) -> PostgresReader:
        """Raises StoreAway."""
        pool: AsyncConnectionPool[_Connection] = AsyncConnectionPool(
            server.address(url),
            min_size=1,
            max_size=CONNECTIONS,
            timeout=WAIT_S,
            open=False,
            configure=_configure,
            kwargs={"autocommit": True, "cursor_factory": psycopg.AsyncRawCursor, "row_factory": make_rows},
            name="rlproxy-reader",
        )
        await pool.open()
        return cls(url, pool)

    async def close(self) -> None:
        await self._pool.close()

    async def rows(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Raises StoreAway. One that meets a connection of before the server's restart is asked once more."""
        with self._noting_absence():
            try:
                return await self._rows(sql, parameters)
            except psycopg.Error as error:
                if not server.is_away(error) or isinstance(error, PoolTimeout):
                    raise
                return await self._rows(sql, parameters)

    async def _rows(self, sql: str, parameters: Any) -> list[Any]:
        async with asyncio.timeout(READ_S), self._pool.connection() as connection:
            return await _fetch(connection, sql, parameters)

    async def row(self, sql: str, parameters: Any = ()) -> Any:
        return next(iter(await self.rows(sql, parameters)), None)

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[aiosqlite.Connection]:
        """Several queries that see the database at one moment. Raises StoreAway."""
        with self._noting_absence():
            async with self._pool.connection() as connection:
                await connection.execute(_SNAPSHOT)
                try:
                    yield cast(aiosqlite.Connection, _Snapshot(connection))
                finally:
                    with contextlib.suppress(psycopg.Error):
                        await connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _noting_absence(self) -> Iterator[None]:
        """Raises StoreAway where the server is, and at once where it was a moment ago."""
        was_away = time.monotonic() - self._failure_s < AWAY_S and self.commit_s() < self._failure_s
        if was_away or self.is_known_away():
            raise server.away(self._url, TimeoutError("it did not answer a moment ago"))
        try:
            yield
        except (psycopg.Error, TimeoutError) as error:
            if isinstance(error, TimeoutError) or server.is_away(error):
                self._failure_s = time.monotonic()
                raise server.away(self._url, error) from error
            raise


class _Snapshot:
    """The calls of aiosqlite's connection that the store's queries use."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def execute_fetchall(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        return await _fetch(self._connection, sql, parameters)


async def _fetch(connection: _Connection, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    statement = translate(sql)
    cursor = connection.cursor()
    values = statement.values(parameters)
    await cursor.execute(statement.text_for(values), values, binary=True)
    return await cursor.fetchall()


async def _configure(connection: _Connection) -> None:
    adapt(connection)
    await connection.execute(server.SESSION)
