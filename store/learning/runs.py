"""Runs after their claim, the adapters they leave, and the pointer to the live one.

Not here: which samples a run gets (`samples`), loading an adapter into a backend (proxy).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from store.captured.rows import to_adapter, to_json, to_pointer, to_run
from store.errors import RunEnded, UnknownAdapter, UnknownRun
from store.learning import meta
from store.reader import Reader
from store.records import BASE, Adapter, Pointer, Run, RunStatus

WAITING = "not_yet_live"  # the version that was published since the pointer moved last
RATED_BEFORE = "rated_before"  # the newest rating (seq) when it did: no clock that is set can change what was before
BASELINE = "baseline"  # the meta key of the reward baseline, which runs hand on


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
    db: sqlite3.Connection, run_id: int, adapter: Adapter, result: dict[str, Any], baseline: float | None
) -> None:
    """The run has made this adapter: its samples are used up and the baseline moves (None: stays), all or nothing."""
    end(db, run_id, "done", result.get("reason"), result)
    db.execute(
        """INSERT INTO adapters (version, parent, run_id, model, path, created_at, manifest)
        VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (
            adapter.version, adapter.parent, adapter.run_id, adapter.model, adapter.path, adapter.created_at,
            to_json(adapter.manifest),
        ),
    )  # fmt: skip
    if baseline is not None:
        meta.set_meta(db, BASELINE, float(baseline))
    meta.set_meta(db, WAITING, adapter.version)


def point(db: sqlite3.Connection, live: int, reason: str, actor: str) -> Pointer:
    """Make a version live. The one before becomes `previous`, unless nothing changed, or it is gone for good."""
    if live != BASE and db.execute("SELECT 1 FROM adapters WHERE version = ?", (live,)).fetchone() is None:
        raise UnknownAdapter(live)
    before = to_pointer(db.execute("SELECT * FROM pointer").fetchone())
    gone = db.execute("SELECT 1 FROM adapters WHERE version = ? AND path = ''", (before.live,)).fetchone() is not None
    after = Pointer(
        live=live,
        previous=before.previous if live == before.live else live if gone else before.live,
        changed_at=time.time(),
        reason=reason,
        actor=actor,
    )
    db.execute(
        "UPDATE pointer SET live = ?, previous = ?, changed_at = ?, reason = ?, actor = ?",
        (after.live, after.previous, after.changed_at, after.reason, after.actor),
    )
    meta.set_meta(db, WAITING, None)
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM ratings").fetchone()
    meta.set_meta(db, RATED_BEFORE, newest)
    meta.audit(db, actor, "point", {"live": live, "was": before.live, "reason": reason})
    return after


def withdraw(db: sqlite3.Connection, version: int, reason: str, actor: str) -> None:
    """Mark a version so that it never goes live by itself again. Its files stay."""
    if not db.execute("UPDATE adapters SET withdrawn = ? WHERE version = ?", (reason, version)).rowcount:
        raise UnknownAdapter(version)
    meta.audit(db, actor, "withdraw", {"version": version, "reason": reason})


async def folders(reader: Reader) -> dict[int, str]:
    """Of every run, by number."""
    return {row["id"]: row["folder"] for row in await reader.rows("SELECT id, folder FROM runs")}


def moved(db: sqlite3.Connection, versions: Mapping[int, str], folders: Mapping[int, str]) -> None:
    """Where these versions and runs are now, by number."""
    db.executemany("UPDATE adapters SET path = ? WHERE version = ?", [(p, v) for v, p in versions.items()])
    db.executemany("UPDATE runs SET folder = ? WHERE id = ?", [(p, run) for run, p in folders.items()])
    meta.audit(db, "start", "moved", {"versions": sorted(versions), "runs": sorted(folders)})


async def recent(reader: Reader, limit: int) -> list[Run]:
    return [to_run(row) for row in await reader.rows("SELECT * FROM runs ORDER BY id DESC LIMIT ?", (limit,))]


async def one(reader: Reader, run_id: int) -> Run | None:
    row = await reader.row("SELECT * FROM runs WHERE id = ?", (run_id,))
    return None if row is None else to_run(row)


async def still_open(reader: Reader) -> list[Run]:
    rows = await reader.rows("SELECT * FROM runs WHERE status IN ('claimed', 'running') ORDER BY id")
    return [to_run(row) for row in rows]


async def adapters(reader: Reader) -> list[Adapter]:
    return [to_adapter(row) for row in await reader.rows("SELECT * FROM adapters ORDER BY version")]


async def adapter(reader: Reader, version: int) -> Adapter | None:
    row = await reader.row("SELECT * FROM adapters WHERE version = ?", (version,))
    return None if row is None else to_adapter(row)


async def pointer(reader: Reader) -> Pointer:
    row = await reader.row("SELECT * FROM pointer")
    assert row is not None  # the first migration put it there
    return to_pointer(row)


def _must_be_open(db: sqlite3.Connection, run_id: int) -> None:
    row = db.execute("SELECT status FROM runs WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        raise UnknownRun(run_id)
    if row["status"] not in ("claimed", "running"):
        raise RunEnded(f"The run {run_id} has ended already ({row['status']}).")
