"""Forgetting for good, step by step: the rows, the search index, the database's log, run folders, gaps in the file.

Owns the order of these steps. Not here: which rows go (`forget`), the files of a run (proxy).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import orjson

from store.captured import inbox
from store.file import meta, schema, tombstones
from store.file.db_key import Secret
from store.file.page_gaps import Gaps
from store.file.part import StorePart
from store.file.reader import Reader
from store.file.writer import Writer
from store.forgetting import backup_scan, forget
from store.records import Forgetting, Target


class ErasureStore(StorePart):
    _writer: Writer

    def __init__(
        self, reader: Reader, writer: Writer, home: Path, secret: Secret | None, *, is_shared: bool = False
    ) -> None:
        super().__init__(reader, writer)
        self._home = home
        self._secret = secret
        self._is_shared = is_shared
        self._gaps = Gaps(home / schema.NAME)
        self._overwriting = asyncio.Lock()

    def close(self) -> None:
        self._gaps.close()

    async def look(self, kind: Target, name: str) -> Forgetting:
        return await self._writer.submit(lambda db: forget.look(db, kind, name))

    async def copies_with(self, home: Path, kind: Target, name: str) -> backup_scan.BackupScan:
        """Copies of the database that still have it."""
        return await asyncio.to_thread(backup_scan.looked_through, home, kind, name, self._secret)

    async def forget(self, kind: Target, name: str, actor: str, *, retrain: bool = False) -> Forgetting:
        """Rows, words of the search and the database's log. Run folders are owed: `owed_to_run_folders`.

        `retrain`: the versions that learned from it are gone, too, and a `rebuild` has begun.
        """
        forgetting = await self._writer.submit(lambda db: forget.forget(db, kind, name, actor, retrain=retrain))
        if forgetting.completions and not self._is_shared:  # PostgreSQL's index has rows, which are gone
            first = True
            while await self._writer.submit(lambda db, first=first: inbox.purge(db, first)):  # type: ignore[misc]
                first = False
        await self._writer.empty_log()
        return forgetting

    async def delete(self, id: str) -> bool:
        """A completion's rows; False where there are none. Run folders are owed. Raises InOpenRun."""
        return await self._writer.submit(lambda db: forget.delete(db, id))

    async def owed_to_run_folders(self) -> dict[str, list[str]]:
        """Completions and ratings that were forgotten and may still be in files of runs."""
        return dict(await meta.get_meta(self._reader, forget.OWED, forget.NOTHING))

    async def forgotten(self, ids: Collection[str]) -> frozenset[str]:
        """Which of these completions and ratings were, here or by another relay of this database."""
        by_hash = {tombstones.hash_of(id): id for id in ids}
        rows = await self._reader.rows(forget.FORGOTTEN_OF, (orjson.dumps(list(by_hash)).decode(),))
        noted = await asyncio.to_thread(tombstones.forgotten, self._home) | {row["hash"] for row in rows}
        owed = await self.owed_to_run_folders()  # those of an older database are in no table, and not in the file yet
        owed_ids = {id for kind_ids in owed.values() for id in kind_ids}
        return frozenset(id for hash, id in by_hash.items() if hash in noted or id in owed_ids)

    async def note_run_folders_cleaned(self, owed: dict[str, list[str]]) -> bool:
        """These are out of the run folders, too; False where the database's log could not be emptied just now.

        From now on no backup that is restored brings them back.
        """
        ids = [*owed["completions"], *owed["ratings"]]
        await asyncio.to_thread(tombstones.note_forgotten, self._home, ids)
        await self._writer.submit(lambda db: forget.paid(db, owed))
        return await self._writer.empty_log()

    async def overwrite_gaps(self) -> bool:
        """Copies that SQLite has left of what was forgotten, once that has gone; whether there was anything to do.

        Raises NotOverwritten where it cannot be done now. It is owed until it is done, also after a kill.
        """
        async with self._overwriting:
            owed = await meta.get_meta(self._reader, forget.GAPS, None)
            if owed is None or self._secret is not None:
                return False
            await self._writer.overwrite(self._gaps)
            await self._writer.submit(lambda db: forget.overwritten(db, owed))
            return True
