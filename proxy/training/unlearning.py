"""In place of versions that learned from what was forgotten: a step back, runs without it, and then their files go.

Owns the order of it. First the live pointer leaves such a version, at once. Where the backend is down it does so again
and again, and at the next start before anything is loaded. Then runs train from the clean version on the ratings that
came again, until none of those is left or a run publishes nothing. Only then the old folders are deleted: until then
they tell how likely a version found its own replies. All of it is found in the store, so a crash anywhere goes on at
the next start. Not here: which versions (store.forgetting.forget), the run itself (run_supervisor).
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from config.settings import Settings
from proxy.backends.base import Backend
from proxy.core.errors import ProxyError
from proxy.core.events import Events
from proxy.core.version_names import label, version_in_words, versions_in_words
from proxy.training.cloud_student import CloudStudent
from proxy.training.preconditions import Preconditions
from proxy.training.relocation import folder_of, may_be_deleted
from proxy.training.schedule_rules import ENDED_UNPUBLISHED
from proxy.versions.live_version import LiveVersion
from store.errors import StoreError
from store.learning.unlearning import clean_of
from store.records import Rebuild, Run
from store.store import Store

log = structlog.get_logger()

ACTOR: Final = "rlproxy"
DERIVED_FOLDERS: Final = ("gguf", "mlx")  # folders of the home with adapters in other formats
_DIGEST: Final = re.compile("[0-9a-f]{12}")


RebuildBody = TypedDict(
    "RebuildBody",
    {
        "versions": Annotated[list[int], Field(description="Those that are gone.")],
        "from": Annotated[int, Field(ge=0, description="The newest that did not learn from it; 0 is the base model.")],
        "runs": list[int],
        "state": Literal["under way", "over"],
        "line": str,
    },
)
"""In place of versions that learned from what was forgotten."""


class Unlearning:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        live_version: LiveVersion,
        backend: Backend,
        preconditions: Preconditions,
        cloud_student: CloudStudent | None,
        events: Events,
    ) -> None:
        self._settings = settings
        self._store = store
        self._live_version = live_version
        self._backend = backend
        self._preconditions = preconditions
        self._cloud_student = cloud_student
        self._events = events
        self.problem: str | None = None  # why such a version still answers
        self._stepping = asyncio.Lock()  # a request that forgets and the supervisor may step back at once

    async def start(self) -> None:
        """Before any version is loaded: one that is gone is not what the pointer names."""
        adapters = await self._store.versions.all()
        for line, pointer in (await self._store.lines.pointers()).items():
            if (to := clean_of(adapters, pointer.live)) != pointer.live:
                await self._store.versions.point(to, _because(pointer.live), ACTOR, line)

    async def begin(self) -> Rebuild | None:
        """Right after something was forgotten; what is under way now, None where no version learned from it."""
        state = await self._store.unlearning.state()
        if state is None or state.over is not None:
            return None
        await self._step_back()
        log.info("rebuilding", versions=state.versions, clean=state.clean)
        self._events.emit("rebuild", versions=state.versions, line=_line(state))
        return state

    async def due_lines(self) -> set[str]:
        """The lines whose next run is one of these. Ends it where nothing is left to do. Raises StoreError."""
        state = await self._store.unlearning.state()
        if state is None or state.over is not None or not await self._step_back():
            return set()
        last = await self._store.runs.get(state.new_runs[-1]) if state.new_runs else None
        train = self._settings.train
        live = await self._cloud_student.parent() if self._cloud_student else self._live_version.live
        near, stale, due = 0, 0, set[str]()
        may_go_on = last is None or last.status not in ENDED_UNPUBLISHED
        for line in await self._store.unlearning.lines() & set(self._live_version.lines):
            line_near, line_stale = await self._store.samples.returned_ratings(
                state,
                live=live if self._cloud_student else self._live_version.live_of(line),
                max_version_gap=train.max_version_gap,
                foreign=self._cloud_student is not None,
                line=line,
            )
            near, stale = near + line_near, stale + line_stale
            if line_near and may_go_on and (await self._preconditions.fresh(line=line)).total:
                due.add(line)
        if due:
            return due
        finished_runs = [
            run for id in state.new_runs if (run := await self._store.runs.get(id)) is not None and run.status == "done"
        ]
        try:
            await self._end(state, _outcome(state, finished_runs, last, near, stale, live))
        except OSError as error:
            self.problem = f"{versions_in_words(state.versions)} could not be deleted: {error}; it is tried again."
            log.error("versions that learned from what was forgotten are still on disk", error=str(error))
        return set()

    async def report(self) -> RebuildBody | None:
        """For `status`; None where nothing was ever rebuilt."""
        state = await self._store.unlearning.state()
        if state is None:
            return None
        return {
            "versions": list(state.versions),
            "from": state.clean,
            "runs": list(state.new_runs),
            "state": "under way" if state.over is None else "over",
            "line": state.over or self.problem or _line(state),
        }

    async def _step_back(self) -> bool:
        """Tell whether neither the live version nor the one that a rollback finds is gone."""
        async with self._stepping:
            adapters = await self._store.versions.all()
            if self._cloud_student:
                await self._cloud_student.step_back(adapters)
            for line, pointer in (await self._store.lines.pointers()).items():
                try:
                    await self._step_back_in(line, pointer.live, clean_of(adapters, pointer.live))
                except (ProxyError, StoreError) as error:
                    self.problem = (
                        f"{label(pointer.live)} still answers, though it learned from what was forgotten: {error}"
                    )
                    log.error("a version that is gone still answers; it is tried again", error=str(error))
                    return False
            self.problem = None
            return True

    async def _step_back_in(self, line: str, live: int, to: int) -> None:
        """Raises ProxyError, StoreError."""
        if to == live:
            await self._live_version.reload()
        elif self._backend.capabilities.adapters and line in self._live_version.lines:
            await self._live_version.to(to, _because(live), ACTOR, line=line)
        else:
            await self._store.versions.point(to, _because(live), ACTOR, line)

    async def _end(self, state: Rebuild, line: str) -> None:
        """The old versions' files go, then it is on record that this is over."""
        adapters = {a.version: a for a in await self._store.versions.all()}
        digests = [
            str(adapters[v].manifest.get("files", {}).get("adapter_model.safetensors", ""))[:12]
            for v in state.versions
            if v in adapters
        ]
        folders = [
            folder_of(self._settings, Path(path), adapters[v].manifest if v in adapters else {})
            for v, path in state.paths.items()
        ]
        for id in state.runs:
            if (run := await self._store.runs.get(id)) is not None:
                folders += [Path(run.folder), self._settings.home / "tensorboard" / f"run-{id}"]
        outside = await asyncio.to_thread(self._outside, folders)
        ours = [folder for folder in folders if folder not in outside]
        await asyncio.to_thread(_delete, ours, self._settings.home, digests)
        if outside:
            line += f"; not in this home, and left for you to delete: {', '.join(map(str, outside))}"
        await self._store.unlearning.end(line)
        log.info("rebuilt", line=line)
        self._events.emit("rebuild", versions=state.versions, line=line)

    def _outside(self, folders: Iterable[Path]) -> list[Path]:
        """Another home may need these, or they are not a version's at all."""
        return [folder for folder in folders if folder.exists() and not may_be_deleted(self._settings, folder)]


def _delete(folders: Iterable[Path], home: Path, digests: Iterable[str]) -> None:
    """Raises OSError: then it is tried again."""
    paths = [folder for folder in folders if folder.exists()]
    for digest in filter(_DIGEST.fullmatch, digests):  # a pattern for `glob` is none
        for subfolder in DERIVED_FOLDERS:
            paths += (home / subfolder).glob(f"*-{digest}*")
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _because(version: int) -> str:
    return f"{label(version)} learned from what was forgotten"


def _line(state: Rebuild) -> str:
    """While it is under way."""
    return (
        f"{versions_in_words(state.versions)} learned from what was forgotten; what is left of the ratings trains again"
    )


def _outcome(state: Rebuild, finished_runs: list[Run], last: Run | None, near: int, stale: int, live: int) -> str:
    answers = version_in_words(live)
    if last is not None and last.status in ENDED_UNPUBLISHED:
        outcome = (
            f"run {last.id} ended {last.status} ({last.reason}): {answers} stays, and {near} ratings are fresh again"
        )
    elif finished_runs:
        outcome = f"{versions_in_words(run.version for run in finished_runs)} was trained without it"
    else:
        outcome = f"no rating can train again now, {answers} stays"
    ended_well = last is None or last.status not in ENDED_UNPUBLISHED
    outcome += (
        f"; {near} ratings wait until others have rated, too (train.max_rater_share)" if near and ended_well else ""
    )
    old = f"; {stale} ratings are too many versions old to train again (train.max_version_gap)" if stale else ""
    verb = "are" if len(state.versions) > 1 else "is"
    return f"{versions_in_words(state.versions)} learned from what was forgotten and {verb} deleted; {outcome}{old}"
