"""Runs after their claim: started, paused, ended, published, moved.

Not here: which samples a run gets (`samples`), the versions they leave (`versions`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from store.captured.rows import to_json, to_run
from store.errors import RunEnded, UnknownRun
from store.file import meta, run_keys
from store.file.part import StorePart, Writes
from store.file.reader import Reader
from store.learning import versions
from store.learning.versions import StoredAnswerPair
from store.line_records import COMMON
from store.records import Adapter, Run, RunStatus

EPISODE_BASELINE = "episode_baseline"  # the same of episodes outside any group
BASELINE = "baseline"  # the meta key of the reward baseline, which runs hand on
BASELINES = "baselines_before"  # the newest published run, and both baselines before it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequirements:
    """A run to be made of what is fresh; `claim` of ratings and of episodes adds what each needs."""

    model: str
    version: int  # that it makes
    live: int
    max_version_gap: int
    limit: int  # completions, or episodes
    min_total: int  # ratings, or episodes: with fewer there is no run
    folder_of: Callable[[int], str]
    last_number: int = 0  # its number is above this one, as folders of such numbers are there
    retrains: bool = False  # it replays ratings on another base
    line: str = COMMON


def another_is_open(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM runs WHERE status IN ('claimed', 'running')").fetchone() is not None


def begin(db: sqlite3.Connection, requirements: RunRequirements, *, samples: int, held_samples: int = 0) -> Run:
    (run_id,) = db.execute(
        """INSERT INTO runs (id, status, model, version, parent, folder, created_at, samples, held, retrains, line)
        VALUES (1 + max(?, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'runs'), 0)),
                'claimed', ?, ?, ?, '', ?, ?, ?, ?, ?) RETURNING id""",
        (
            requirements.last_number,
            requirements.model,
            requirements.version,
            requirements.live,
            time.time(),
            samples,
            held_samples,
            int(requirements.retrains),
            requirements.line,
        ),
    ).fetchone()
    folder = requirements.folder_of(run_id)
    return to_run(db.execute("UPDATE runs SET folder = ? WHERE id = ? RETURNING *", (folder, run_id)).fetchone())


def started(db: sqlite3.Connection, run_id: int) -> None:
    _must_be_open(db, run_id)
    db.execute(
        "UPDATE runs SET status = 'running', attempts = attempts + 1, started_at = ? WHERE id = ?",
        (time.time(), run_id),
    )


def paused(db: sqlite3.Connection, run_id: int) -> None:
    """It was told to stop half-way: that attempt does not count."""
    _must_be_open(db, run_id)
    db.execute("UPDATE runs SET attempts = attempts - 1 WHERE id = ?", (run_id,))


def end(
    db: sqlite3.Connection, run_id: int, status: RunStatus, reason: str | None, result: dict[str, Any] | None
) -> None:
    _must_be_open(db, run_id)
    db.execute(
        "UPDATE runs SET status = ?, reason = ?, result = ?, ended_at = ? WHERE id = ?",
        (status, reason, to_json(result), time.time(), run_id),
    )


def publish(
    db: sqlite3.Connection,
    run_id: int,
    adapter: Adapter,
    result: dict[str, Any],
    baseline: float | None,
    pairs: Sequence[StoredAnswerPair] = (),
) -> None:
    """The run has made this adapter: its samples are used up and the baseline moves (None: stays), all or nothing.
    `pairs` show what it changed. What retrains on another base moves nothing, and never goes live by itself."""
    end(db, run_id, "done", result.get("reason"), result)
    db.execute(
        """INSERT INTO adapters (version, parent, run_id, model, path, created_at, manifest, line)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            adapter.version, adapter.parent, adapter.run_id, adapter.model, adapter.path, adapter.created_at,
            to_json(adapter.manifest), adapter.line,
        ),
    )  # fmt: skip
    versions.add_answer_pairs(db, adapter.version, pairs)
    if db.execute("SELECT retrains FROM runs WHERE id = ?", (run_id,)).fetchone()[0]:
        return
    line = adapter.line
    keys = [meta.of_line(key, line) for key in (BASELINE, EPISODE_BASELINE)]
    baselines = {key: float(meta.read_meta(db, key, 0.0)) for key in keys}
    meta.set_meta(db, meta.of_line(BASELINES, line), {"run": run_id, "baselines": baselines})
    if baseline is not None:
        meta.set_meta(db, keys[0], float(baseline))
        if (of_episodes := result.get("episode_baseline_after")) is not None:
            meta.set_meta(db, keys[1], float(of_episodes))
    meta.set_meta(db, meta.of_line(versions.WAITING, line), adapter.version)


def give_back(
    db: sqlite3.Connection, run_id: int, reason: str, status: Literal["failed", "rejected"] = "failed"
) -> None:
    """The version that this run has published last cannot be loaded, or fails a check. The run's samples are fresh
    again, the baseline is as before it, and the version never goes live by itself. All or nothing."""
    row = db.execute("SELECT status, version, line FROM runs WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        raise UnknownRun(run_id)
    if row["status"] != "done":
        raise RunEnded(f"The run {run_id} has no version to give back ({row['status']}).")
    db.execute("UPDATE runs SET status = ?, reason = ? WHERE id = ?", (status, reason, run_id))
    versions.withdraw(db, row["version"], reason, "rlproxy")
    versions.forget_answer_pairs(db, {row["version"]})  # it changed nothing
    stored = meta.read_meta(db, meta.of_line(BASELINES, row["line"]), {})
    if stored.get("run") == run_id:
        for key, value in stored["baselines"].items():
            meta.set_meta(db, key, value)
    meta.set_meta(db, meta.of_line(versions.WAITING, row["line"]), None)


def moved(db: sqlite3.Connection, versions: Mapping[int, str], folders: Mapping[int, str]) -> None:
    """Where these versions and runs are now, by number."""
    db.executemany("UPDATE adapters SET path = ? WHERE version = ?", [(p, v) for v, p in versions.items()])
    db.executemany("UPDATE runs SET folder = ? WHERE id = ?", [(p, run) for run, p in folders.items()])
    meta.audit(db, "start", "moved", {"versions": sorted(versions), "runs": sorted(folders)})


def _must_be_open(db: sqlite3.Connection, run_id: int) -> None:
    row = db.execute("SELECT status FROM runs WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        raise UnknownRun(run_id)
    if row["status"] not in ("claimed", "running"):
        raise RunEnded(f"The run {run_id} has ended already ({row['status']}).")


class RunStore(StorePart):
    def __init__(self, reader: Reader, writer: Writes, *, encrypted: bool) -> None:
        super().__init__(reader, writer)
        self._encrypted = encrypted

    async def started(self, run_id: int) -> None:
        await self._writer.submit(lambda db: started(db, run_id))

    async def paused(self, run_id: int) -> None:
        """Stopped half-way because it was told to: the attempt does not count."""
        await self._writer.submit(lambda db: paused(db, run_id))

    async def end(
        self,
        run_id: int,
        status: Literal["rejected", "empty", "failed", "cancelled"],
        reason: str,
        result: dict[str, Any] | None,
    ) -> None:
        """The run made no adapter; its samples are fresh again."""
        await self._writer.submit(lambda db: end(db, run_id, status, reason, result))

    async def publish(
        self,
        run_id: int,
        adapter: Adapter,
        result: dict[str, Any],
        baseline: float | None,
        pairs: Sequence[StoredAnswerPair] = (),
    ) -> None:
        await self._writer.submit(lambda db: publish(db, run_id, adapter, result, baseline, pairs))

    async def give_back(self, run_id: int, reason: str, status: Literal["failed", "rejected"] = "failed") -> None:
        """Its version does not go live; its samples are fresh again. Raises RunEnded where it has none."""
        await self._writer.submit(lambda db: give_back(db, run_id, reason, status))

    async def recent(self, limit: int = 50) -> list[Run]:
        return [to_run(row) for row in await self._reader.rows("SELECT * FROM runs ORDER BY id DESC LIMIT ?", (limit,))]

    async def last_of(self, line: str) -> Run | None:
        """The newest of a line, on this base: what a retrain came to says nothing about it."""
        row = await self._reader.row(
            "SELECT * FROM runs WHERE line = ? AND retrains = 0 ORDER BY id DESC LIMIT 1", (line,)
        )
        return None if row is None else to_run(row)

    async def get(self, run_id: int) -> Run | None:
        row = await self._reader.row("SELECT * FROM runs WHERE id = ?", (run_id,))
        return None if row is None else to_run(row)

    async def with_samples(self, names: Collection[str]) -> list[Run]:
        """Those whose results name one of these samples, newest first. Most have claimed it; a run of an earlier
        release may have trained it once more."""
        rows = await self._reader.rows(
            """SELECT u.* FROM runs u WHERE u.result IS NOT NULL AND EXISTS (
            SELECT 1 FROM json_each(u.result, '$.samples') s WHERE s.key IN (SELECT value FROM json_each(?)))
            ORDER BY u.id DESC""",
            (orjson.dumps(sorted(names)).decode(),),
        )
        return [to_run(row) for row in rows]

    async def folders(self) -> dict[int, str]:
        """Read it for every run, by number."""
        return {row["id"]: row["folder"] for row in await self._reader.rows("SELECT id, folder FROM runs")}

    async def moved(self, versions: Mapping[int, str], folders: Mapping[int, str]) -> None:
        await self._writer.submit(lambda db: moved(db, versions, folders))

    async def unfinished(self) -> list[Run]:
        rows = await self._reader.rows("SELECT * FROM runs WHERE status IN ('claimed', 'running') ORDER BY id")
        return [to_run(row) for row in rows]

    async def key(self, run_id: int) -> bytes | None:
        """The cipher for a run's files, made at the first call; None where nothing is encrypted."""
        if not self._encrypted:
            return None
        stored_key = await run_keys.read_key(self._reader, run_id)
        return stored_key or await self._writer.submit(lambda db: run_keys.of(db, run_id))

    async def existing_key(self, run_id: int) -> bytes | None:
        """The same, of a run that has one."""
        return await run_keys.read_key(self._reader, run_id)
