"""One database for several relays: what a store needs for that beside its queries.

Owns how it is opened, and what runs beside the serving: deliveries of what was spooled, and the end of a connection
that hangs. Not here: what the proxy makes of the news.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import psycopg

from store.errors import StoreError
from store.file.integrity import Integrity
from store.learning.ratings import RatingStore
from store.postgres import migration, relays, schema, server
from store.postgres.captures import SharedCompletionStore
from store.postgres.connection import PostgresConnection
from store.postgres.following import Following
from store.postgres.reader import PostgresReader
from store.postgres.spool import Spool
from store.postgres.writer import PostgresWriter
from store.records import NewRating, Rating


def outline(url: str) -> str:
    """The server, and the relays that were seen lately, in a line. Blocking. Raises StoreError."""
    try:
        with closing(PostgresConnection(url)) as db:
            version = db.execute("SELECT current_setting('server_version') AS version").fetchone()["version"]
            if not schema.is_made(db):
                return f"PostgreSQL {version} at {server.place_of(url)}, where no relay was yet"
            hosts = relays.hosts(db)
    except (psycopg.Error, OSError) as error:
        raise server.not_opened(url, error) from error
    return f"PostgreSQL {version} at {server.place_of(url)}; relays seen lately: {', '.join(hosts) or 'none'}"


def take(home: Path, url: str) -> tuple[PostgresConnection, Spool, str]:
    """The database with our tables, this relay's spool, and its name. Blocking. Raises StoreError."""
    try:
        relay = relays.name_of(home)
        spool = Spool(home)
        db = PostgresConnection(url)
    except (psycopg.Error, OSError) as error:
        raise server.not_opened(url, error) from error
    try:
        schema.migrate(db)
        if migration.unfinished(db):
            raise StoreError(
                "A migration into this database has not come to its end: run the same `rlproxy migrate` again. Nothing "
                "was changed."
            )
        with db:
            db.execute("BEGIN IMMEDIATE")
            relays.note_seen(db, relay)
            relays.end_abandoned(cast(sqlite3.Connection, db), relay)
    except BaseException as error:
        db.close()
        if isinstance(error, psycopg.Error):
            raise server.not_opened(url, error) from error
        raise
    return db, spool, relay


async def connect(db: PostgresConnection, url: str, integrity: Integrity, spool: Spool, relay: str) -> Sharing:
    """Takes the connection over. Raises StoreError."""
    writer = PostgresWriter(db, url, integrity)
    try:
        return Sharing(writer, await PostgresReader.connect(url), spool, Following(url, relay), relay)
    except BaseException:
        await writer.stop()
        raise


class Sharing:
    def __init__(
        self, writer: PostgresWriter, reader: PostgresReader, spool: Spool, following: Following, relay: str
    ) -> None:
        self.writer = writer
        self.reader = reader
        self.following = following
        self.relay = relay
        self.completions = SharedCompletionStore(reader, writer, spool, relay)
        self.ratings = SharedRatingStore(reader, writer, self.completions)
        reader.is_known_away = lambda: self.is_away
        reader.commit_s = lambda: writer.commit_s

    @property
    def is_away(self) -> bool:
        """Tell whether the database was not there when it was last looked for, or written to."""
        since = self.following.away_since
        return since is not None and since > self.writer.commit_s

    @property
    def spooled(self) -> int:
        """Answers on this relay's own disk that the database does not have yet."""
        return len(self.completions.spool.ids)

    @property
    def refused(self) -> str | None:
        """In a sentence, what was not delivered for what it is; None where all was."""
        spool = self.completions.spool
        if not spool.refused:
            return None
        return (
            f"{spool.refused} spooled answers were not delivered: the database refuses them for what they are, or "
            f"they are damaged or another rlproxy's. They are in {spool.refused_file}, and nowhere else: keep that "
            "file, and report it with the log's lines about the spool."
        )

    async def run(self) -> None:
        """For ever: deliveries, and the end of what hangs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.completions.run(), name="deliver")
            group.create_task(self.writer.end_hung(), name="end-hung")

    async def end_abandoned(self) -> int:
        """End the rows of relays that are gone; how many. For the one that learns."""
        return await self.writer.submit(lambda db: relays.end_abandoned(db, self.relay))

    async def close(self) -> None:
        """Let another relay learn at once, and `rlproxy migrate` begin."""
        if not self.is_away:
            with contextlib.suppress(StoreError):
                await self.writer.submit(lambda db: relays.sign_off(db, self.relay))
        await self.completions.spool.close()


class SharedRatingStore(RatingStore):
    def __init__(self, reader: PostgresReader, writer: PostgresWriter, captured: SharedCompletionStore) -> None:
        super().__init__(reader, writer)
        self._captured = captured

    async def rate(self, new: NewRating) -> Rating:
        """Raises StoreAway: a rating is never spooled, since nobody could be told which answer it is of."""
        if new.completion_id in self._captured.spool.ids:
            await self._captured.deliver()
        return await super().rate(new)
