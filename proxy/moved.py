"""A home that was moved: its versions and runs are where they are now, not where the database saw them last.

Owns finding them again at start. Only what is gone from its recorded place is looked for, and only in this home. Not
here: whether an adapter is still what it was (trainer.manifest; each load asks).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from config.settings import Settings
from store.store import Store

log = structlog.get_logger()


async def find_again(settings: Settings, store: Store) -> None:
    adapters = {a.version: a.path for a in await store.adapters() if not a.gone}
    versions = await asyncio.to_thread(_elsewhere, adapters, settings.adapters_dir, 2)
    folders = await asyncio.to_thread(_elsewhere, await store.run_folders(), settings.home / "runs", 1)
    if versions or folders:
        await store.moved(versions, folders)
        log.warning("this home was moved: its versions and runs were found in it", versions=sorted(versions))


def _elsewhere(recorded: dict[int, str], root: Path, deep: int) -> dict[int, str]:
    """By number, the folders that are not where they were, but below `root` under their last `deep` names."""
    gone = {number: Path(path) for number, path in recorded.items() if path and not Path(path).exists()}
    new = {number: root.absolute().joinpath(*path.parts[-deep:]) for number, path in gone.items()}
    return {number: str(path) for number, path in new.items() if path.is_dir()}
