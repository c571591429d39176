"""Versions that may answer, and the pointer to the live one.

Not here: the run that makes a version (`runs`), loading an adapter into a backend (proxy).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import orjson

from store.captured.rows import to_adapter, to_pointer
from store.errors import UnknownAdapter
from store.file import meta
from store.file.part import StorePart
from store.records import BASE, Adapter, Pointer

WAITING = "not_yet_live"  # the version that was published since the pointer moved last
RATED_BEFORE = "rated_before"  # the newest rating (seq) when it did: no clock that is set can change what was before


@dataclass(frozen=True, slots=True)
class StoredAnswerPair:
    """A rated prompt as a version and the one before it answered it."""

    completion_id: str  # that was rated
    parent_answer: str  # of the version before
    answer: str
    question: str = ""  # what was asked last, where it is read from the store


def point(db: sqlite3.Connection, live: int, reason: str, actor: str) -> Pointer:
    """Make a version live. The one before becomes `previous`, unless nothing changed, or it is gone for good."""
    if live != BASE and db.execute("SELECT 1 FROM adapters WHERE version = ?", (live,)).fetchone() is None:
        raise UnknownAdapter(live)
    old_pointer = to_pointer(db.execute("SELECT * FROM pointer").fetchone())
    is_deleted = (
        db.execute("SELECT 1 FROM adapters WHERE version = ? AND path = ''", (old_pointer.live,)).fetchone() is not None
    )
    new_pointer = Pointer(
        live=live,
        previous=old_pointer.previous if live == old_pointer.live else live if is_deleted else old_pointer.live,
        changed_at=time.time(),
        reason=reason,
        actor=actor,
    )
    db.execute(
        "UPDATE pointer SET live = ?, previous = ?, changed_at = ?, reason = ?, actor = ?",
        (new_pointer.live, new_pointer.previous, new_pointer.changed_at, new_pointer.reason, new_pointer.actor),
    )
    meta.set_meta(db, WAITING, None)
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM ratings").fetchone()
    meta.set_meta(db, RATED_BEFORE, newest)
    meta.audit(db, actor, "point", {"live": live, "was": old_pointer.live, "reason": reason})
    return new_pointer


def withdraw(db: sqlite3.Connection, version: int, reason: str, actor: str) -> None:
    """Mark a version so that it never goes live by itself again. Its files stay."""
    if not db.execute("UPDATE adapters SET withdrawn = ? WHERE version = ?", (reason, version)).rowcount:
        raise UnknownAdapter(version)
    meta.audit(db, actor, "withdraw", {"version": version, "reason": reason})


def add_answer_pairs(db: sqlite3.Connection, version: int, pairs: Iterable[StoredAnswerPair]) -> None:
    """In this order, without those of prompts that are not there any more."""
    db.executemany(
        """INSERT INTO answer_pairs (version, position, completion_id, parent_answer, answer)
        SELECT ?, ?, c.id, ?, ? FROM completions c WHERE c.id = ?""",
        [
            (version, position, pair.parent_answer, pair.answer, pair.completion_id)
            for position, pair in enumerate(pairs)
        ],
    )


def forget_answer_pairs(db: sqlite3.Connection, versions: Collection[int], completions: Collection[str] = ()) -> None:
    """Forget answers of versions that learned from what is forgotten, and to the prompts of these completions."""
    db.execute(
        """DELETE FROM answer_pairs WHERE version IN (SELECT CAST(value AS INTEGER) FROM json_each(?))
        OR completion_id IN (SELECT value FROM json_each(?))""",
        (orjson.dumps(sorted(versions)).decode(), orjson.dumps(sorted(completions)).decode()),
    )


class VersionStore(StorePart):
    async def all(self) -> list[Adapter]:
        return [to_adapter(row) for row in await self._reader.rows("SELECT * FROM adapters ORDER BY version")]

    async def get(self, version: int) -> Adapter | None:
        row = await self._reader.row("SELECT * FROM adapters WHERE version = ?", (version,))
        return None if row is None else to_adapter(row)

    async def next(self) -> int:
        return 1 + max((adapter.version for adapter in await self.all()), default=0)

    async def pointer(self) -> Pointer:
        row = await self._reader.row("SELECT * FROM pointer")
        assert row is not None  # the first migration put it there
        return to_pointer(row)

    async def point(self, live: int, reason: str, actor: str) -> Pointer:
        return await self._writer.submit(lambda db: point(db, live, reason, actor))

    async def withdraw(self, version: int, reason: str, actor: str) -> None:
        await self._writer.submit(lambda db: withdraw(db, version, reason, actor))

    async def answer_pairs(self, version: int, limit: int) -> list[StoredAnswerPair]:
        """Prompts that show what the version changed, the best to show first."""
        rows = await self._reader.rows(
            """SELECT p.completion_id, p.parent_answer, p.answer, c.asked FROM answer_pairs p
            CROSS JOIN completions c ON c.id = p.completion_id WHERE p.version = ? ORDER BY p.position LIMIT ?""",
            (version, limit),
        )
        return [
            StoredAnswerPair(row["completion_id"], row["parent_answer"], row["answer"], row["asked"]) for row in rows
        ]
