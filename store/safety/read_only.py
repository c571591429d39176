"""The store of a home, read-only: no lock is taken, nothing is migrated, and the database is left as it is.

Owns what reports need where no proxy answers. Whether one runs meanwhile does not matter. SQLite may leave an empty log
beside what it reads, as for a backup. Not here: what the calls read (runs, samples, ratings, export); everything else
is `Store`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from store import driver, schema
from store.captured import export
from store.errors import StoreError
from store.learning import ratings, runs, samples
from store.reader import Reader
from store.records import Adapter, Pointer, Rating, Run, Sample
from store.safety.db_key import Secret


class Looking:
    """As `Store` reads; each call has the name that it has there."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def adapters(self) -> list[Adapter]:
        return await runs.adapters(self._reader)

    async def pointer(self) -> Pointer:
        return await runs.pointer(self._reader)

    async def runs(self, limit: int = 50) -> list[Run]:
        return await runs.recent(self._reader, limit)

    async def run_samples(self, run_id: int) -> list[Sample]:
        return await samples.samples_of(self._reader, run_id)

    async def rating(self, rating_id: str) -> Rating | None:
        return await ratings.one(self._reader, rating_id)

    def export(self, only: export.Filter | None = None) -> AsyncIterator[dict[str, Any]]:
        return export.export(self._reader, only or export.Filter())


@asynccontextmanager
async def look(home: Path, secret: Secret | None = None) -> AsyncIterator[Looking]:
    """Raises StoreError: also where the database is of another rlproxy, since nothing is migrated here."""
    path = home / schema.NAME
    if not path.is_file():
        raise StoreError(f"There is no database at {path}; `rlproxy serve` makes one with its first start.")
    try:
        await asyncio.to_thread(_check, path, secret)
        reader = await Reader.open(path, secret)
        try:
            yield Looking(reader)
        finally:
            await reader.close()
    except driver.errors() as error:
        why = f"{error}{driver.perhaps_encrypted(error)}"
        raise StoreError(f"{path} cannot be read ({why}); nothing was changed.") from error


def _check(path: Path, secret: Secret | None) -> None:
    with closing(driver.connect(path, secret, read_only=True)) as db:
        if schema.pending(db):
            raise StoreError(f"{path} is of an older rlproxy; start `rlproxy serve` once to bring it up to date.")
