"""A home that was moved or copied: what it works on is in it, and not where the database saw that last.

Owns finding its versions and runs again at start, and what is this home's own. What is elsewhere may be another home's,
so it is read at most, never written or deleted. Not here: whether an adapter is still what it was (manifest;
each load asks).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from config.settings import Settings
from proxy.training import run_folder
from store.records import Adapter
from store.store import Store

log = structlog.get_logger()

_FOLDER_NAME: Final = re.compile(r"(v|r|run-)\d+", re.ASCII)  # the folder of a version, a run, a run's scalars


async def relocate(settings: Settings, store: Store) -> None:
    versions = await asyncio.to_thread(_versions, settings, await store.versions.all())
    folders = await asyncio.to_thread(_folders, settings, await store.runs.folders())
    if versions or folders:
        await store.runs.moved(versions, folders)
        moved = "this home was moved or copied" if store.sharing is None else "another relay learned before this one"
        log.warning(
            f"{moved}: it works on what is in its home, and leaves alone what is elsewhere",
            versions=sorted(versions), runs=sorted(folders),
        )  # fmt: skip
    for run in await store.runs.unfinished():
        await asyncio.to_thread(_begin_anew, settings, Path(run.folder))


def is_ours(settings: Settings, path: Path) -> bool:
    """Tell whether it may be written or deleted; by real paths, as a part of a home may be a link to another disk."""
    roots = (settings.home, settings.home / "runs", settings.adapters_dir)
    return any(Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)) for root in roots)


def may_be_deleted(settings: Settings, path: Path) -> bool:
    """Tell whether it is the folder of one version or one run in this home, by its name and place. The database says
    which it is, and may be somebody else's backup: the home itself must not go by its word."""
    real = Path(os.path.realpath(path))
    roots = (settings.home, settings.home / "runs", settings.adapters_dir)
    holds_more = any(Path(os.path.realpath(folder)).is_relative_to(real) for folder in roots)
    return is_ours(settings, path) and _FOLDER_NAME.fullmatch(real.name) is not None and not holds_more


def folder_of(settings: Settings, path: Path, manifest: Mapping[str, Any]) -> Path:
    """Where a version is that was at `path`: here, if it is; it may have stayed outside on purpose."""
    relocated = settings.adapters_dir.absolute().joinpath(*path.parts[-2:])
    if path.exists() and (is_ours(settings, path) or not _is(relocated, manifest)):
        return path
    return relocated if relocated.is_dir() else path


def _versions(settings: Settings, adapters: Iterable[Adapter]) -> dict[int, str]:
    """By number, where those are that are not where they were."""
    paths = {
        a.version: (a.path, str(folder_of(settings, Path(a.path), a.manifest))) for a in adapters if not a.is_deleted
    }
    return {version: new_path for version, (old_path, new_path) in paths.items() if new_path != old_path}


def _folders(settings: Settings, recorded: Mapping[int, str]) -> dict[int, str]:
    """The same of runs, which are nowhere else than in the home: one that is not there is begun anew, or was over."""
    elsewhere = {run: Path(path) for run, path in recorded.items() if path and not is_ours(settings, Path(path))}
    return {run: str(settings.home.absolute() / "runs" / path.name) for run, path in elsewhere.items()}


def _begin_anew(settings: Settings, folder: Path) -> None:
    """A run that is to write its version elsewhere goes: the learner writes its folder once more."""
    if not may_be_deleted(settings, folder) or not run_folder.complete(folder):
        return
    if not is_ours(settings, Path(run_folder.ordered(folder))):
        shutil.rmtree(folder)


def _is(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Tell whether it has the files of this version: another home's may have the same number."""
    try:
        return bool(json.loads((folder / "manifest.json").read_bytes()).get("files") == manifest.get("files"))
    except (OSError, ValueError, AttributeError):
        return False
