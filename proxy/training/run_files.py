"""The files of runs that hold what people said, as two parts of rlproxy see them: who writes them and who forgets.

Owns that these take turns, and that what was forgotten leaves the files before anything trains on them. A folder is
written from rows that were read under the lock; whoever forgets deletes rows and looks into the folders under the same
lock. So a text is either gone before its row is read, or its file is there to be looked into. Rows and what the folders
owe go in one transaction: a kill at any moment leaves the files to the next start.
Not here: which files those are and what is in them (run_folder), which rows go (store.forgetting.forget).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from proxy.training import run_folder
from store.errors import InOpenRun, NotOverwritten, StoreError
from store.records import Forgetting, Run
from store.store import Store
from trainer.launch import IN_THE_CLEAR, Seal

log = structlog.get_logger()

EVERY_RUN: Final = 1_000_000  # all there are
EVERY_S: Final = 600.0


class RunFiles:
    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._runs = home / "runs"
        self.lock = asyncio.Lock()  # held by who writes a run folder, and by who forgets

    async def start(self) -> None:
        """Remove what a crash has left. A file that cannot be changed now is tried again before the next run."""
        if not await self._store.checked():
            return
        try:
            async with self.lock:
                await self.settle()
        except (OSError, StoreError, ValueError) as error:
            log.error("samples of what was forgotten are still in run folders", error=str(error))

    async def overwrite(self) -> None:
        """Copies of what was forgotten in gaps of the database; later where somebody reads it just now."""
        try:
            await self._store.erasure.overwrite_gaps()
        except NotOverwritten as error:
            log.warning("what was forgotten may still be in the database", why=str(error))

    async def keep_overwriting(self) -> None:
        """Overwrite what clients deleted, and what could not be overwritten before: now and then, since it
        reads all."""
        if not await self._store.checked():
            return
        while True:
            try:
                await self.overwrite()
            except StoreError as error:
                log.error("copies of what was forgotten were not overwritten", error=str(error))
            await asyncio.sleep(EVERY_S)

    async def refuse_if_trained_on(self, going: Forgetting) -> None:
        """Under the lock. Raises InOpenRun where a run under way has one of these among its samples."""
        for run in await self._store.runs.unfinished():
            seal = Seal(await self._store.runs.existing_key(run.id))
            if await asyncio.to_thread(
                run_folder.trains_on, Path(run.folder), set(going.completions), set(going.ratings), seal
            ):
                raise InOpenRun(run.id)

    async def clean(self, run: Run) -> None:
        """Under the lock. What the folder of this run still has of what was forgotten goes. Raises OSError."""
        completions, ratings = await self._owed()
        if completions or ratings:
            seal = Seal(await self._store.runs.existing_key(run.id))
            await asyncio.to_thread(run_folder.remove_forgotten, Path(run.folder), completions, ratings, seal)

    async def settle(self) -> int:
        """Under the lock. The same of all folders; how many samples went."""
        completions, ratings = await self._owed()
        if not completions and not ratings:
            return 0
        removed = 0
        runs = await self._store.runs.recent(limit=EVERY_RUN)
        folders = [(Path(run.folder), Seal(await self._store.runs.existing_key(run.id))) for run in runs]
        unknown = await asyncio.to_thread(run_folder.find_unlisted, self._runs, [run.folder for run in runs])
        for folder, seal in (*folders, *((folder, IN_THE_CLEAR) for folder in unknown)):
            removed += await asyncio.to_thread(run_folder.remove_forgotten, folder, completions, ratings, seal)
        if not await self._store.erasure.note_run_folders_cleaned(
            {"completions": [*completions], "ratings": [*ratings]}
        ):
            log.warning("what was forgotten is still in the database's log, until it is written over or rlproxy stops")
        return removed

    async def _owed(self) -> tuple[set[str], set[str]]:
        owed = await self._store.erasure.owed_to_run_folders()
        return set(owed["completions"]), set(owed["ratings"])
