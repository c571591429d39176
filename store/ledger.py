"""What the store remembers beside conversations: single named values (meta) and who did what (audit)."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import orjson

from store.reader import Reader

META = "SELECT value FROM meta WHERE key = ?"


def read_meta(db: sqlite3.Connection, key: str, default: Any) -> Any:
    row = db.execute(META, (key,)).fetchone()
    return default if row is None else orjson.loads(row["value"])


async def get_meta(reader: Reader, key: str, default: Any) -> Any:
    row = await reader.row(META, (key,))
    return default if row is None else orjson.loads(row["value"])


def set_meta(db: sqlite3.Connection, key: str, value: Any) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, orjson.dumps(value).decode()))


def audit(db: sqlite3.Connection, actor: str, act: str, detail: dict[str, Any]) -> None:
    db.execute(
        "INSERT INTO audit (at, actor, act, detail) VALUES (?, ?, ?, ?)",
        (time.time(), actor, act, orjson.dumps(detail).decode()),
    )


async def audit_log(reader: Reader, limit: int) -> list[dict[str, Any]]:
    rows = await reader.rows("SELECT * FROM audit ORDER BY seq DESC LIMIT ?", (limit,))
    return [
        {"at": row["at"], "actor": row["actor"], "act": row["act"], "detail": orjson.loads(row["detail"])}
        for row in rows
    ]
