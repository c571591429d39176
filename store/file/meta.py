"""Memory of the store beside conversations: single named values (meta) and who did what (audit).

The audit log is a chain: the hash of a line is over the line and the hash before it. Who changes a line, or takes one
out, would have to change all after it; whoever has once noted the newest hash sees that, too.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from typing import Any, Final, NamedTuple

import orjson

from store.file.part import StorePart
from store.file.reader import Reader
from store.line_records import COMMON

FIRST: Final = bytes(32)  # the hash before the first line
LINES: Final = "SELECT seq, at, actor, act, detail, hash FROM audit ORDER BY seq"
UNCAPTURED: Final = "uncaptured_sessions"  # the meta key of those of which nothing is kept
PAGE_SECRET: Final = "page_secret"  # noqa: S105  the meta key of what signs the page's cookies
META = "SELECT value FROM meta WHERE key = ?"
SET_META: Final = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def of_line(key: str, line: str) -> str:
    """The key of a value that each line has: the common line's is the plain one."""
    return key if line == COMMON else f"{key}@{line}"


def read_meta(db: sqlite3.Connection, key: str, default: Any) -> Any:
    row = db.execute(META, (key,)).fetchone()
    return default if row is None else orjson.loads(row["value"])


async def get_meta(reader: Reader, key: str, default: Any) -> Any:
    row = await reader.row(META, (key,))
    return default if row is None else orjson.loads(row["value"])


def set_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    db.execute(SET_META, (key, orjson.dumps(value).decode()))


def forget_page_secret(db: sqlite3.Connection) -> None:
    """In a copy of the database: keys are hashed in it, and by this whoever reads it would be an admin all the same.
    Browsers sign in once more where it is restored."""
    db.execute("PRAGMA secure_delete = ON")
    db.execute("DELETE FROM meta WHERE key = ?", (PAGE_SECRET,))


def audit(db: sqlite3.Connection, actor: str, act: str, detail: dict[str, Any]) -> None:
    last = db.execute("SELECT hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    values = (time.time(), actor, act, orjson.dumps(detail).decode())
    (seq,) = db.execute(
        "INSERT INTO audit (at, actor, act, detail) VALUES (?, ?, ?, ?) RETURNING seq", values
    ).fetchone()
    key = _hash(FIRST if last is None else last[0], seq, *values)
    db.execute("UPDATE audit SET hash = ? WHERE seq = ?", (key, seq))


class AuditVerdict(NamedTuple):
    lines: int
    head: str  # the newest hash, to be noted elsewhere
    problem: str | None


def verify(db: sqlite3.Connection, expected: str | None = None) -> AuditVerdict:
    """Tell whether the chain holds, and has the hash that somebody noted before, if one is given."""
    line_hash, last_seq, lines, heads = FIRST, 0, 0, set()
    for seq, *values, stored_hash in db.execute(LINES):
        if seq != last_seq + 1:
            return AuditVerdict(lines, line_hash.hex(), f"lines {last_seq + 1} to {seq - 1} are missing")
        if stored_hash is None or _hash(line_hash, seq, *values) != stored_hash:
            return AuditVerdict(lines, line_hash.hex(), f"line {seq} is not what was written, or one before it is gone")
        line_hash, last_seq, lines = stored_hash, seq, lines + 1
        heads.add(stored_hash.hex())
    sequence = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'audit'").fetchone()
    if sequence is not None and sequence[0] != last_seq:
        return AuditVerdict(lines, line_hash.hex(), f"lines {last_seq + 1} to {sequence[0]} are missing")
    if expected is not None and expected.lower() not in heads:
        return AuditVerdict(lines, line_hash.hex(), "the hash that you expect is not in it: the log was written anew")
    return AuditVerdict(lines, line_hash.hex(), None)


def _hash(previous_hash: bytes, seq: int, timestamp: float, actor: str, act: str, detail: str) -> bytes:
    return hashlib.blake2b(previous_hash + orjson.dumps([seq, timestamp, actor, act, detail]), digest_size=32).digest()


class MetaStore(StorePart):
    async def get(self, key: str, default: Any = None) -> Any:
        return await get_meta(self._reader, key, default)

    async def set(self, key: str, value: Any) -> None:
        await self._writer.submit(lambda db: set_meta(db, key, value))

    async def audit(self, actor: str, act: str, detail: dict[str, Any]) -> None:
        await self._writer.submit(lambda db: audit(db, actor, act, detail))

    async def audit_log(self, limit: int = 50, before_seq: int | None = None) -> list[dict[str, Any]]:
        """Newest first; those before `before_seq`."""
        rows = await self._reader.rows(
            "SELECT seq, at, actor, act, detail FROM audit WHERE seq < ? ORDER BY seq DESC LIMIT ?",
            (2**63 - 1 if before_seq is None else before_seq, limit),
        )
        return [{**dict(row), "detail": orjson.loads(row["detail"])} for row in rows]
