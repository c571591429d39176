"""A home of an earlier schema comes up to date with all that is in it, and a copy is kept first.

The newest schema is made up (scripts.harness.newer_schema).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness import newer_schema
from store.copies import backup
from store.errors import StoreError
from store.file import meta, schema
from store.store import Store

SHAPE = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"


def shape(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return [(*row[:3], " ".join((row[3] or "").split())) for row in db.execute(SHAPE)]


def number(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


async def holds_all(home: Path, told: Callable[[str], object] = lambda text: None) -> None:
    store = await Store.open(home, tell=told)
    try:
        found = await store.completions.get("rl-a")
        assert found is not None and found.end is not None and found.end.reply is not None
        assert [m.body for m in found.new.prompt] == [b'{"content":"hi"}']
        assert found.end.text == "hello" and found.end.reply.body == b'{"content":"hello"}'
        assert [(r.id, r.value, r.comment) for r in found.ratings] == [("rt-1", 1.0, "so kind")]
        linked = await store.reactions.linked("slack", "C1", "1")
        assert linked is not None and linked.completion_id == "rl-a"
        assert (await store.versions.pointer()).live == 1 and await store.meta.get("baseline") == 0.25
        assert [line["act"] for line in await store.meta.audit_log()] == ["pause", "promote"]
    finally:
        await store.close()


async def test_all_that_is_in_it_comes_along_and_a_copy_is_kept(older: Path, newest: int) -> None:
    told: list[str] = []
    await holds_all(older.parent, told.append)
    (kept,) = (older.parent / backup.FOLDER).iterdir()
    assert str(kept) in told[-1] and kept.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(kept)) as db:
        assert db.execute("SELECT text FROM completions").fetchall() == [("hello",)]
    assert (number(kept), number(older)) == (newest - 1, newest)
    with closing(sqlite3.connect(older)) as db:
        assert db.execute("SELECT * FROM moods").fetchall() == [("rl-a",)]
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert meta.verify(db).problem is None and meta.verify(db).lines == 2
    told.clear()
    await holds_all(older.parent, told.append)
    assert told == [] and list((older.parent / backup.FOLDER).iterdir()) == [kept]


async def test_a_new_home_is_of_the_newest_schema_and_has_nothing_to_copy(
    older: Path, newest: int, tmp_path: Path
) -> None:
    fresh = tmp_path / "fresh"
    await (await Store.open(fresh)).close()
    await (await Store.open(older.parent)).close()
    assert number(fresh / schema.NAME) == newest and shape(fresh / schema.NAME) == shape(older)
    assert not (fresh / backup.FOLDER).exists()


async def test_todays_home_is_opened_as_it_is(older: Path) -> None:
    told: list[str] = []
    await holds_all(older.parent, told.append)
    assert told == [] and not (older.parent / backup.FOLDER).exists()


async def test_without_a_copy_nothing_is_changed(older: Path, newest: int) -> None:
    (older.parent / backup.FOLDER).write_text("in the way")
    with pytest.raises(StoreError, match="left as it is"):
        await Store.open(older.parent)
    assert number(older) == newest - 1
    (older.parent / backup.FOLDER).unlink()
    await holds_all(older.parent)


async def test_a_full_disk_in_the_middle_loses_nothing_and_is_not_filled_with_copies(older: Path, newest: int) -> None:
    """As often as it is started again, too: 1,000 pages hold the database, and not its messages twice."""
    with closing(sqlite3.connect(older)) as db:
        rows = ((n.to_bytes(16, "big"), b"x" * 3000) for n in range(500))
        db.executemany("INSERT INTO messages (hash, role, body) VALUES (?, 'user', ?)", rows)
        db.commit()

    def with_no_more_room(db: sqlite3.Connection, path: Path, seen: int) -> Path:
        copy = backup.before_migration(db, path, seen)
        db.execute("PRAGMA max_page_count = 1000")
        return copy

    for _ in range(2):
        with pytest.raises(StoreError, match=r"nothing in it was lost.* free some space"):
            schema.open_database(older, with_no_more_room)
        assert list((older.parent / backup.FOLDER).iterdir()) == []
    assert number(older) == newest - 1
    with closing(sqlite3.connect(older)) as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (502,)
    await holds_all(older.parent)


async def test_a_migration_that_fails_leaves_the_database_as_it_was(older: Path, tmp_path: Path) -> None:
    before = shape(older)
    folder = newer_schema.write(tmp_path / "failing")
    (script,) = folder.glob(f"{max(schema.numbers()) + 1:04d}.sql")
    script.write_text(newer_schema.MIGRATION + "INSERT INTO none VALUES (1);")
    with newer_schema.installed(folder) as newest, pytest.raises(StoreError, match="no such table: none"):
        await Store.open(older.parent)
    assert shape(older) == before and number(older) == newest - 1
    await holds_all(older.parent)
