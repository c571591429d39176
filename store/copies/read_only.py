"""The store of a home, read-only: no lock is taken, nothing is migrated, and the database is left as it is.

Owns what reports need where no proxy answers. Whether one runs meanwhile does not matter. SQLite may leave an empty log
beside what it reads, as for a backup. Not here: what the calls read.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

from store.captured.completions import CompletionStore
from store.captured.inbox import InboxStore
from store.captured.stats import StatStore
from store.copies.export import TransferStore
from store.errors import StoreError
from store.file import driver, schema
from store.file.db_key import Secret
from store.file.part import R, T
from store.file.reader import Reader
from store.learning.episode_groups import EpisodeGroupStore
from store.learning.ratings import RatingStore
from store.learning.runs import RunStore
from store.learning.samples import SampleStore
from store.learning.versions import VersionStore

READ_ONLY: Final = "The store is open for reading only, so nothing was changed."


class _NoWriter:
    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        raise StoreError(READ_ONLY)

    def submit_rows(
        self, store_rows: Callable[[sqlite3.Connection, Sequence[R]], None], rows: Sequence[R]
    ) -> asyncio.Future[None]:
        raise StoreError(READ_ONLY)


class ReadOnlyStore:
    """Read as `Store` does; each call has the name that it has there."""

    def __init__(self, reader: Reader) -> None:
        writer = _NoWriter()
        self.completions = CompletionStore(reader, writer)
        self.inbox = InboxStore(reader, writer)
        self.stats = StatStore(reader, writer)
        self.transfer = TransferStore(reader, writer)
        self.ratings = RatingStore(reader, writer)
        self.samples = SampleStore(reader, writer)
        self.episode_groups = EpisodeGroupStore(reader, writer)
        self.runs = RunStore(reader, writer, encrypted=False)
        self.versions = VersionStore(reader, writer)


@asynccontextmanager
async def look(home: Path, secret: Secret | None = None) -> AsyncIterator[ReadOnlyStore]:
    """Raises StoreError: also where the database is of another rlproxy, since nothing is migrated here."""
    path = home / schema.NAME
    if not path.is_file():
        raise StoreError(f"There is no database at {path}; `rlproxy serve` makes one with its first start.")
    try:
        await asyncio.to_thread(_check, path, secret)
        reader = await Reader.open(path, secret)
        try:
            yield ReadOnlyStore(reader)
        finally:
            await reader.close()
    except driver.errors() as error:
        reason = f"{error}{driver.perhaps_encrypted(error)}"
        raise StoreError(f"{path} cannot be read ({reason}); nothing was changed.") from error


def _check(path: Path, secret: Secret | None) -> None:
    with closing(driver.connect(path, secret, read_only=True)) as db:
        schema.check(db, path)
        if schema.pending(db):
            raise StoreError(f"{path} is of an older rlproxy; start `rlproxy serve` once to bring it up to date.")
