"""News of the other relays of a database, heard at once, and looked for every few seconds.

Owns the connection that listens, and on it the one lock that makes a relay the learner. A notification is lost with a
broken connection, so that after each, and every POLL_S, anything may have changed. A relay that takes over from another
waits until that one's trainer has stopped. Not here: what follows from a change (proxy).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import psycopg
import structlog

from store.postgres import relays, server, values
from store.postgres.translation import translate

log = structlog.get_logger()

CHANNEL: Final = "rlproxy"
LEARNER: Final = 7_205_759_405  # the advisory lock of the relay that learns
POLL_S: Final = 5.0
RETRY_S: Final = 1.0
STOPPED_S: Final = 20.0  # until a learner that has lost the database has stopped its trainer
EVERYTHING: Final = frozenset({"*"})
_LEAD: Final = f"SELECT pg_try_advisory_lock({LEARNER}) AS free"
_LAST_LEARNER: Final = f"""SELECT {relays.CLOCK} - coalesce(max(a.seen_at), 0) AS silent_s FROM relays a
JOIN meta m ON m.key = 'learner' AND m.value = to_json(a.id)::text WHERE a.id <> ?"""  # noqa: S608  ours
_NOTE_LEARNER: Final = """INSERT INTO meta VALUES ('learner', to_json(CAST(? AS TEXT))::text)
ON CONFLICT (key) DO UPDATE SET value = excluded.value"""


class Following:
    def __init__(self, url: str, relay: str) -> None:
        self._url = url
        self._relay = relay
        self._leads = asyncio.Event()
        self._follows = asyncio.Event()
        self._follows.set()
        self.away_since: float | None = None  # monotonic, of the database; None: it is there
        self._locked_s: float | None = None  # monotonic, since this relay has the learner's lock

    @property
    def leads(self) -> bool:
        return self._leads.is_set()

    async def leading(self) -> None:
        """Returns once this relay is the learner."""
        await self._leads.wait()

    async def lost(self) -> None:
        """Returns once it is not, any more."""
        await self._follows.wait()

    def _lose(self) -> None:
        self._locked_s = None
        self._leads.clear()
        self._follows.set()

    async def changes(self) -> AsyncGenerator[frozenset[str]]:
        """Names of tables that have changed, and `meta KEY`, for ever; `*` is anything."""
        while True:
            try:
                async with await self._connect() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}".encode())
                    self.away_since = None
                    yield EVERYTHING
                    async for topics in self._listen(connection):
                        yield topics
            except (psycopg.Error, OSError, TimeoutError) as error:
                if self.away_since is None:
                    self.away_since = time.monotonic()
                    log.warning("the database is away", reason=" ".join(str(error).split())[:200])
            finally:
                self._lose()
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            server.address(self._url), autocommit=True, cursor_factory=psycopg.AsyncRawCursor,
            row_factory=values.make_rows,
        )  # fmt: skip
        try:
            values.adapt(connection)
            await connection.execute(server.SESSION.encode())
        except BaseException:  # also a relay that stops just now
            await connection.close()
            raise
        return connection

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[frozenset[str]]:
        polled = time.monotonic()
        await self._look(connection)
        while True:
            topics = frozenset([note.payload async for note in connection.notifies(timeout=POLL_S / 5, stop_after=1)])
            if time.monotonic() - polled >= POLL_S:
                async with asyncio.timeout(2 * POLL_S):  # a server that is frozen answers nobody
                    await self._look(connection)
                polled, topics = time.monotonic(), EVERYTHING
            if topics:
                yield topics

    async def _look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """This relay is there; and it may be its turn to learn."""
        await _execute(connection, relays.NOTE, (self._relay, relays.host()))
        if self.leads:
            return
        if self._locked_s is None:
            if not (await _execute(connection, _LEAD))["free"]:
                return
            self._locked_s = time.monotonic()
        last = await _execute(connection, _LAST_LEARNER, (self._relay,))
        # One that lost the lock and is well goes on to be seen, and has stopped its trainer all the same.
        has_stopped = last["silent_s"] >= STOPPED_S or time.monotonic() >= self._locked_s + STOPPED_S
        if not has_stopped:
            return
        await _execute(connection, _NOTE_LEARNER, (self._relay,))
        self._follows.clear()
        self._leads.set()
        log.info("this relay learns", relay=self._relay)


async def _execute(connection: psycopg.AsyncConnection[Any], sql: str, parameters: tuple[Any, ...] = ()) -> Any:
    """The first row; None where the statement has none."""
    statement = translate(sql)
    cursor = connection.cursor()
    await cursor.execute(statement.text.encode(), statement.values(parameters), binary=True)
    return await cursor.fetchone() if cursor.description is not None else None
