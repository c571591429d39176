"""Keys that were handed out: who they are, their hashes, when they were last used.

Owns the rows and that each change is in the audit log. Not here: what a key looks like and may do (proxy.keys).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from store import driver, ledger
from store.errors import NameTaken, UnknownKey
from store.reader import Reader
from store.records import Key

FIND = "SELECT * FROM keys WHERE revoked_at IS NULL AND (id = :given OR name = :given)"


def add(db: sqlite3.Connection, key: Key, actor: str) -> None:
    try:
        db.execute(
            "INSERT INTO keys (id, name, role, hash, created_at) VALUES (?, ?, ?, ?, ?)",
            (key.id, key.name, key.role, key.hash, key.created_at),
        )
    except driver.errors() as error:
        if driver.code(error) != driver.CONSTRAINT:
            raise
        raise NameTaken(f"There is a key named {key.name} already.") from None
    ledger.audit(db, actor, "key created", {"id": key.id, "name": key.name, "role": key.role})


def revoke(db: sqlite3.Connection, given: str, actor: str) -> Key:
    """By id or name. Raises UnknownKey."""
    row = db.execute(FIND, {"given": given}).fetchone()
    if row is None:
        raise UnknownKey(f"There is no key {given} that still holds.")
    now = time.time()
    db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", (now, row["id"]))
    ledger.audit(db, actor, "key revoked", {"id": row["id"], "name": row["name"]})
    return _key({**dict(row), "revoked_at": now})


def used(db: sqlite3.Connection, when: Mapping[str, float]) -> None:
    db.executemany("UPDATE keys SET last_used = ? WHERE id = ?", [(at, id) for id, at in when.items()])


async def all_of(reader: Reader) -> list[Key]:
    return [_key(row) for row in await reader.rows("SELECT * FROM keys ORDER BY created_at, id")]


def _key(row: Any) -> Key:
    return Key(
        id=row["id"],
        name=row["name"],
        role=row["role"],
        hash=row["hash"],
        created_at=row["created_at"],
        last_used=row["last_used"],
        revoked_at=row["revoked_at"],
    )
