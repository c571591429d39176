"""Every schema that was ever released comes up to date with all that is in it, and a copy is kept first."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from store import schema
from store.errors import StoreError
from store.learning import meta
from store.safety import backup
from store.store import Store
from tests.store.make_schema import CHAINED

SCHEMAS = sorted((Path(__file__).parent / "schemas").glob("*.sql"))
SHAPE = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"


def old(home: Path, script: Path) -> None:
    with closing(sqlite3.connect(home / schema.NAME)) as db:
        db.executescript(script.read_text(encoding="utf-8"))


def shape(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return [(*row[:3], " ".join((row[3] or "").split())) for row in db.execute(SHAPE)]


def test_the_first_and_the_newest_are_there() -> None:
    """From the first one every migration runs; the newest few are what people have."""
    there, numbers = [int(file.stem) for file in SCHEMAS], sorted(schema.numbers())
    assert there[0] == numbers[0] and there[-4:] == numbers[-4:]


@pytest.mark.parametrize("script", SCHEMAS, ids=lambda file: file.stem)
async def test_from(script: Path, tmp_path: Path) -> None:
    old(tmp_path, script)
    told: list[str] = []
    store = await Store.open(tmp_path, tell=told.append)
    try:
        newest = int(script.stem) == max(schema.numbers())
        assert newest == (told == []) and newest == (not list((tmp_path / "backups").glob("*.db")))
        assert newest or str(next((tmp_path / "backups").glob("*.db"))) in told[-1]
        found = await store.completions.get("rl-a")
        assert found is not None and found.end is not None
        assert [m.body for m in found.new.prompt] == [b'{"content":"hi"}']
        assert (
            found.end.text == "hello" and found.end.reply is not None and found.end.reply.body == b'{"content":"hello"}'
        )
        assert [(r.id, r.value, r.comment) for r in found.ratings] == [("rt-1", 1.0, "so kind")]
        assert found.new.redacted == ()
        linked = await store.reactions.linked("slack", "C1", "1")
        assert linked is not None and linked.completion_id == "rl-a"
        assert (await store.versions.pointer()).live == 1 and await store.meta.get("baseline") == 0.25
        log = await store.meta.audit_log()
        chained = int(script.stem) >= CHAINED
        assert [line["act"] for line in log] == ["chained", "pause", "promote"][chained:]
        assert chained or log[0]["detail"] == {"lines_before": 2}
        await store.meta.audit("admin", "resume", {})
    finally:
        await store.close()
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert meta.verify(db).problem is None and meta.verify(db).lines == (3 if chained else 4)
    fresh = tmp_path / "fresh"
    await (await Store.open(fresh)).close()
    assert shape(tmp_path / schema.NAME) == shape(fresh / schema.NAME)
    assert not (fresh / backup.FOLDER).exists()  # nothing to keep of a new one
    if int(script.stem) == max(schema.numbers()):
        return
    (kept,) = (tmp_path / backup.FOLDER).iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(kept)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (int(script.stem),)
        assert db.execute("SELECT text FROM completions").fetchall() == [("hello",)]


async def test_without_a_copy_nothing_is_changed(tmp_path: Path) -> None:
    old(tmp_path, SCHEMAS[0])
    (tmp_path / backup.FOLDER).write_text("in the way")
    with pytest.raises(StoreError, match="left as it is"):
        await Store.open(tmp_path)
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    (tmp_path / backup.FOLDER).unlink()
    await (await Store.open(tmp_path)).close()


async def test_a_full_disk_in_the_middle_loses_nothing_and_is_not_filled_with_copies(tmp_path: Path) -> None:
    """As often as it is started again, too: 1,000 pages hold the database, and not its messages twice."""
    old(tmp_path, next(script for script in SCHEMAS if script.stem == "0027"))
    path = tmp_path / schema.NAME
    with closing(sqlite3.connect(path)) as db:
        rows = ((n.to_bytes(16, "big"), b"x" * 3000) for n in range(500))
        db.executemany("INSERT INTO messages (hash, role, body) VALUES (?, 'user', ?)", rows)
        db.commit()

    def with_no_more_room(db: sqlite3.Connection, path: Path, seen: int) -> Path:
        copy = backup.before_migration(db, path, seen)
        db.execute("PRAGMA max_page_count = 1000")
        return copy

    for _ in range(2):
        with pytest.raises(StoreError, match=r"nothing in it was lost.* free some space"):
            schema.open_database(path, with_no_more_room)
        assert list((tmp_path / backup.FOLDER).iterdir()) == []
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (27,)
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (502,)
    await (await Store.open(tmp_path)).close()


async def test_impossible_times_of_an_older_import_are_put_right(tmp_path: Path) -> None:
    old(tmp_path, next(script for script in SCHEMAS if script.stem == "0012"))
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        db.execute("UPDATE completions SET created_at = 1e300, finished_at = 1e300")
        db.execute("UPDATE ratings SET created_at = -1e300")
        db.commit()
    store = await Store.open(tmp_path)
    try:
        (completion,) = await store.completions.page()
        assert completion.end is not None and completion.end.finished_at == completion.new.created_at
        assert abs(completion.new.created_at - time.time()) < 3600
        assert [one.created_at for one in await store.ratings.history("rl-a")] == [0.0]
    finally:
        await store.close()
