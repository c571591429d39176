"""Read the home folder after a fuzz to the last row: is it whole, and is everything there that was promised?

Owns the verdict on the store only. What was asked and answered is in `routes`.
"""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.copies.backup import audit_verdict
from store.copies.export import Filter
from store.file import schema
from store.store import Store

if TYPE_CHECKING:
    from scripts.fuzz.routes import Tally

STATES = ("done", "partial", "error")


async def verdict(home: Path, tally: Tally) -> dict[str, Any]:
    """Counts; what is wrong goes to the tally's failures."""
    wrong = tally.failures
    integrity = _check_files(home, wrong)
    store = await Store.open(home)
    ids: set[str] = set()
    states: dict[str, int] = {}
    try:
        async for row in store.transfer.export(Filter()):
            ids.add(row["id"])
            states[row["status"]] = states.get(row["status"], 0) + 1
            wrong += [f"row {row['id']}: {fault}" for fault in _faults(row)][: max(0, 100 - len(wrong))]
        witnessed = await _count_witnesses(store, tally)
        lost = 0
        for rating_id, completion_id in tally.rated.items():  # with its completion a rating goes, too
            lost += completion_id in ids and await store.ratings.get(rating_id) is None
        forgotten = await store.erasure.forgotten(tally.acknowledged)
        counts = await store.stats.counts()
        runs, adapters = await store.runs.recent(limit=10**6), await store.versions.all()
    finally:
        await store.close()
    missing = _count_missing(tally, ids, forgotten)
    if lost > tally.ratings_gone:
        wrong.append(f"{lost} acknowledged ratings are missing, {tally.ratings_gone} were forgotten")
    if counts["pending"]:
        wrong.append(f"{counts['pending']} completions never ended")
    return {
        "completions": len(ids), "by_state": states, "acknowledged": len(tally.acknowledged), **missing,
        "ratings_acknowledged": len(tally.rated), "ratings_missing": lost,
        "witnesses": len(tally.witnesses), "witnesses_whole": witnessed, "runs": len(runs), "adapters": len(adapters),
        "integrity": integrity,
    }  # fmt: skip


def _check_files(home: Path, wrong: list[str]) -> str:
    """Add the faults of the database and of the audit log to `wrong`; SQLite's own verdict on the database."""
    with sqlite3.connect(home / schema.NAME) as db:
        integrity: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        if integrity != "ok":
            wrong.append(f"integrity_check: {integrity}")
        if db.execute("PRAGMA foreign_key_check").fetchall():
            wrong.append("foreign_key_check found rows")
    audited = audit_verdict(home, None)
    if audited.problem:
        wrong.append(f"the audit log: {audited.problem}")
    return integrity


async def _count_witnesses(store: Store, tally: Tally) -> int:
    """Count the witnesses that are stored as they were acknowledged; each of the rest is a failure."""
    count = 0
    for id, rating_id in tally.witnesses.items():
        completion = await store.completions.get(id)
        ratings = [rating.id for rating in completion.ratings] if completion else []
        if completion and completion.status == "done" and rating_id in ratings:
            count += 1
        else:
            tally.failures.append(f"the witness {id} is not there as it was acknowledged")
    return count


def _count_missing(tally: Tally, ids: set[str], forgotten: frozenset[str]) -> dict[str, int]:
    """Count what was acknowledged and is not there: deleted, or lost.

    The store knows what was deleted from it, and the clients know what they asked for. Both have to say so.
    """
    missing = tally.acknowledged.keys() - ids
    lost = missing - forgotten
    if lost:
        tally.failures.append(f"{len(lost)} acknowledged completions are lost: {_examples(tally, lost)}")
    unexplained = missing - lost - tally.deleted - tally.unheard
    if len(unexplained) > tally.forgotten:
        tally.failures.append(
            f"{len(unexplained)} acknowledged completions were deleted, {tally.forgotten} of those by a request "
            f"to forget: {_examples(tally, unexplained)}"
        )
    return {
        "missing": len(missing), "deleted": len(missing & tally.deleted),
        "deleted_unheard": len((missing & tally.unheard) - tally.deleted - lost), "forgotten": len(unexplained),
        "lost": len(lost),
    }  # fmt: skip


def _examples(tally: Tally, ids: set[str]) -> str:
    return ", ".join(f"{id} ({tally.acknowledged[id]})" for id in sorted(ids)[:5])


def _faults(row: dict[str, Any]) -> list[str]:
    """List the faults that no row may have, whatever was sent."""
    faults = []
    try:
        json.dumps(row, allow_nan=False).encode()
    except ValueError as error:
        faults.append(f"it is not JSON: {error}")
    if row["status"] not in STATES:
        faults.append(f"its status is {row['status']}")
    if not row["messages"] and row["dialect"] in ("chat", "messages"):
        faults.append("it has no messages")
    if any(not isinstance(message.get("role"), str) for message in row["messages"]):
        faults.append("a message has no role")
    if row["exact"] and not (row["token_ids"] and len(row["token_ids"]) == len(row["logprobs"] or ())):
        faults.append("it is exact without its numbers")
    if any(not -1 <= rating["value"] <= 1 or not math.isfinite(rating["weight"]) for rating in row["ratings"]):
        faults.append("a rating is out of bounds")
    return faults
