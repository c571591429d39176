"""Keys that were handed out: who they are, their hashes, when they were last used.

Owns the rows and that each change is in the audit log, also where an older database takes the place of a later one.
Not here: the file that outlives the database (tombstones), what a key looks like and may do (proxy.access.keys).
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from store.captured.rows import to_record
from store.errors import NameTaken, UnknownKey
from store.file import driver, meta, tombstones
from store.file.part import StorePart, Writes
from store.file.reader import Reader
from store.records import Key

COLUMNS: Final = ("id", "name", "role", "hash", "created_at", "last_used", "revoked_at", "line")
FIND = "SELECT * FROM keys WHERE revoked_at IS NULL AND (id = :given OR name = :given)"


def add(db: sqlite3.Connection, key: Key, actor: str) -> None:
    try:
        db.execute(
            "INSERT INTO keys (id, name, role, hash, created_at, line) VALUES (?, ?, ?, ?, ?, ?)",
            (key.id, key.name, key.role, key.hash, key.created_at, key.line),
        )
    except driver.errors() as error:
        if driver.code(error) != driver.CONSTRAINT:
            raise
        raise NameTaken(f"There is a key named {key.name} already.") from None
    bound = {} if key.line is None else {"line": key.line}
    meta.audit(db, actor, "key created", {"id": key.id, "name": key.name, "role": key.role} | bound)


def revoke(db: sqlite3.Connection, id_or_name: str, actor: str) -> Key:
    """By id or name. Raises UnknownKey."""
    row = db.execute(FIND, {"given": id_or_name}).fetchone()
    if row is None:
        raise UnknownKey(f"There is no key {id_or_name} that still holds.")
    now = time.time()
    db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", (now, row["id"]))
    meta.audit(db, actor, "key revoked", {"id": row["id"], "name": row["name"]})
    return to_record(Key, row, revoked_at=now)


def read_keys(db: sqlite3.Connection) -> list[Key]:
    """All there ever were."""
    rows = db.execute(f"SELECT {', '.join(COLUMNS)} FROM keys ORDER BY created_at, id")  # noqa: S608  ours
    return [Key(*row) for row in rows]


def revoke_all(db: sqlite3.Connection, ids: Collection[str], actor: str) -> list[Key]:
    """Those of these that hold; they hold no more."""
    holding = [key for key in read_keys(db) if key.id in ids and key.revoked_at is None]
    for key in holding:
        revoke(db, key.id, actor)
    return holding


def merge(db: sqlite3.Connection, newer_keys: Iterable[Key], actor: str) -> None:
    """Into an older database: keys that were made or revoked since. A name is that of the later key.

    A key that both have is as the later one has it. Name, role and hash never change: who wrote others into the older
    file would have this home's key, and nobody would be told."""
    newer = list(newer_keys)
    revoke_all(db, {key.id for key in newer if key.revoked_at is not None}, actor)
    ids, own_ids = {key.id for key in newer}, {key.id for key in read_keys(db)}
    names = {key.name for key in newer if key.revoked_at is None}
    revoke_all(db, {key.id for key in read_keys(db) if key.name in names and key.id not in ids}, actor)
    shared = [key for key in newer if key.id in own_ids]
    db.executemany("UPDATE keys SET name = id || ':' WHERE id = ?", [(key.id,) for key in shared])  # two may swap names
    db.executemany(
        "UPDATE keys SET name = ?, role = ?, hash = ?, created_at = ?, line = ? WHERE id = ?",
        [(key.name, key.role, key.hash, key.created_at, key.line, key.id) for key in shared],
    )
    places = ", ".join("?" * len(COLUMNS))
    db.executemany(
        f"INSERT INTO keys ({', '.join(COLUMNS)}) VALUES ({places})",  # noqa: S608  ours
        [tuple(getattr(key, column) for column in COLUMNS) for key in newer if key.id not in own_ids],
    )


def note_beside(home: Path, all_keys: Collection[Key]) -> None:
    """Note beside the database which keys are revoked, and that a key is asked for. Blocking; raises StoreError."""
    revoked = [key.id for key in all_keys if key.revoked_at is not None]
    tombstones.note_keys(home, revoked, needed=_is_needed(all_keys, tombstones.revoked(home)))


def _is_needed(all_keys: Collection[Key], noted: tombstones.RevokedKeys) -> bool:
    """A key that holds closes the home, also one that came with an older database after it was opened."""
    holds = any(key.revoked_at is None for key in all_keys)
    return holds or noted.needed or (bool(all_keys) and not noted.is_open)


def used(db: sqlite3.Connection, times: Mapping[str, float]) -> None:
    db.executemany("UPDATE keys SET last_used = ? WHERE id = ?", [(used_at, id) for id, used_at in times.items()])


class KeyStore(StorePart):
    def __init__(self, reader: Reader, writer: Writes, home: Path) -> None:
        super().__init__(reader, writer)
        self._home = home

    async def all(self) -> list[Key]:
        """All there ever were, oldest first."""
        return [to_record(Key, row) for row in await self._reader.rows("SELECT * FROM keys ORDER BY created_at, id")]

    async def add(self, key: Key, actor: str) -> None:
        """Raises NameTaken."""
        await self._writer.submit(lambda db: add(db, key, actor))

    async def revoke(self, id_or_name: str, actor: str) -> Key:
        """By id or name. Raises UnknownKey."""
        return await self._writer.submit(lambda db: revoke(db, id_or_name, actor))

    async def note_revoked(self, id: str) -> None:
        """Beside the database alone, which could not take it."""
        await asyncio.to_thread(tombstones.note_keys, self._home, [id], needed=True)

    async def note(self) -> None:
        """So that no older database brings back what is revoked by now, or opens what keys have closed."""
        await asyncio.to_thread(note_beside, self._home, await self.all())

    async def needed(self) -> bool:
        """Tell whether a key is asked for: there ever was one in this home, in whichever database, and no admin has
        ended that since."""
        return _is_needed(await self.all(), await asyncio.to_thread(tombstones.revoked, self._home))

    async def open(self, actor: str) -> list[Key]:
        """Revoke every key, and ask for none until the next is made. Raises StoreError."""

        def revoke_each(db: sqlite3.Connection) -> list[Key]:
            revoked = revoke_all(db, {key.id for key in read_keys(db)}, actor)
            meta.audit(db, actor, "keys off", {"revoked": [key.name for key in revoked]})
            return revoked

        revoked = await self._writer.submit(revoke_each)
        await self.note()
        await asyncio.to_thread(tombstones.note_opened, self._home)
        return revoked

    async def used(self, times: Mapping[str, float]) -> None:
        await self._writer.submit(lambda db: used(db, times))
