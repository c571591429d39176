"""Versions that may answer, and the pointer to the live one.

Not here: the run that makes a version (`runs`), loading an adapter into a backend (proxy).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from store.captured.rows import to_adapter, to_pointer
from store.errors import UnknownAdapter, UnknownLine
from store.file import meta
from store.file.part import StorePart
from store.line_records import COMMON, Pointer
from store.records import BASE, Adapter

ITSELF: Final = "rlproxy"  # the actor of a change that no person has made
WAITING = "not_yet_live"  # the version that was published last, until it is live or a person moves the pointer
USED_AFTER_ALL: Final = "its ratings were given back, and count as used since a person made its version live"
RATED_BEFORE = "rated_before"  # the newest rating (seq) when it did: no clock that is set can change what was before

_COMMON: Final = "SELECT * FROM pointer"
_POINTER: Final = "SELECT * FROM lines WHERE name = ?"


@dataclass(frozen=True, slots=True)
class StoredAnswerPair:
    """A rated prompt as a version and the one before it answered it."""

    completion_id: str  # that was rated
    parent_answer: str  # of the version before
    answer: str
    question: str = ""  # what was asked last, where it is read from the store


def pointer(db: sqlite3.Connection, line: str) -> Pointer:
    """Raises UnknownLine."""
    row = db.execute(_COMMON if line == COMMON else _POINTER, () if line == COMMON else (line,)).fetchone()
    if row is None:
        raise UnknownLine(f"The line {line} does not exist.")
    return to_pointer(row)


def point(db: sqlite3.Connection, live: int, reason: str, actor: str, line: str = COMMON) -> Pointer:
    """Make a version live in a line. The one before becomes `previous`, unless nothing changed, or it is gone for good.
    A person who does so approves the version. Raises UnknownAdapter, UnknownLine."""
    if live != BASE and db.execute("SELECT 1 FROM adapters WHERE version = ?", (live,)).fetchone() is None:
        raise UnknownAdapter(live)
    old_pointer = pointer(db, line)
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
    values = (new_pointer.live, new_pointer.previous, new_pointer.changed_at, new_pointer.reason, new_pointer.actor)
    if line == COMMON:
        db.execute("UPDATE pointer SET live = ?, previous = ?, changed_at = ?, reason = ?, actor = ?", values)
    else:
        db.execute(
            "UPDATE lines SET live = ?, previous = ?, changed_at = ?, reason = ?, actor = ? WHERE name = ?",
            (*values, line),
        )
    if actor != ITSELF:
        _approve(db, live)
    waiting = meta.of_line(WAITING, line)
    if actor != ITSELF or meta.read_meta(db, waiting, None) == live:
        meta.set_meta(db, waiting, None)
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM ratings").fetchone()
    meta.set_meta(db, meta.of_line(RATED_BEFORE, line), newest)
    of_line = {} if line == COMMON else {"line": line}
    meta.audit(db, actor, "point", {"live": live, "was": old_pointer.live, "reason": reason} | of_line)
    return new_pointer


def _approve(db: sqlite3.Connection, version: int) -> None:
    """It is not withdrawn any more. Where its run gave its samples back, they count as used, since the version that
    answers has learned them."""
    db.execute("UPDATE adapters SET withdrawn = NULL WHERE version = ? AND path != ''", (version,))
    row = db.execute(
        """SELECT u.id FROM adapters a CROSS JOIN runs u ON u.id = a.run_id
        WHERE a.version = ? AND a.path != '' AND u.status <> 'done'""",
        (version,),
    ).fetchone()
    if row is None:
        return
    db.execute("UPDATE runs SET status = 'done', reason = ? WHERE id = ?", (USED_AFTER_ALL, row["id"]))
    db.execute(
        "UPDATE episodes SET taken = 1 WHERE seq IN (SELECT t.episode FROM run_episodes t WHERE t.run_id = ?)",
        (row["id"],),
    )


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

    async def pointer(self, line: str = COMMON) -> Pointer:
        """Raises UnknownLine."""
        row = await (self._reader.row(_COMMON) if line == COMMON else self._reader.row(_POINTER, (line,)))
        if row is None:
            raise UnknownLine(f"The line {line} does not exist.")
        return to_pointer(row)

    async def point(self, live: int, reason: str, actor: str, line: str = COMMON) -> Pointer:
        return await self._writer.submit(lambda db: point(db, live, reason, actor, line))

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
