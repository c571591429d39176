"""Backups while the store is in use, and what does not get into its place."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.records import adapter, claim, put, rating
from store.copies import backup
from store.errors import StoreBusy, StoreDamaged, StoreError
from store.file import meta, schema
from store.learning.episodes import NewEpisode
from store.learning.versions import StoredAnswerPair
from store.records import NewRating, NewReaction, Target
from store.store import Store


async def rated(store: Store, id: str) -> None:
    await store.meta.audit("admin", "noted", {"id": id})
    await store.meta.set(id, "x" * 1000)


async def test_while_it_is_written_to(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "b.db"
    store = await Store.open(home)
    try:
        await rated(store, "before")
        writing = asyncio.create_task(_write(store))
        sizes = [await asyncio.to_thread(backup.backup, home / schema.NAME, tmp_path / f"b{i}.db") for i in range(5)]
        await writing
        assert all(sizes) and not list(tmp_path.glob("*.part"))
        with pytest.raises(StoreBusy):
            backup.restore(home, tmp_path / "b0.db")
        assert await store.meta.get("before") == "x" * 1000
    finally:
        await store.close()
    for i in range(5):
        one = tmp_path / f"b{i}.db"
        assert one.stat().st_mode & 0o777 == 0o600
        backup.check(one)
        with closing(sqlite3.connect(one)) as db:  # each is one moment: a note and its line in the log, or neither
            notes = db.execute("SELECT count(*) FROM meta WHERE key LIKE 'n%'").fetchone()[0]
            lines = db.execute("SELECT count(*) FROM audit WHERE detail LIKE '%\"n%'").fetchone()[0]
            assert lines - notes in (0, 1) and meta.verify(db).problem is None
    with pytest.raises(StoreError, match="exists already"):
        backup.backup(home / schema.NAME, tmp_path / "b0.db")
    assert not file.exists()


async def _write(store: Store) -> None:
    for i in range(200):
        await rated(store, f"n{i}")


async def test_restored_and_the_old_one_kept(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "b.db"
    store = await Store.open(home)
    await rated(store, "first")
    backup.backup(home / schema.NAME, file)
    await rated(store, "second")
    await store.close()
    kept = backup.restore(home, file).old_database
    store = await Store.open(home)
    try:
        assert await store.meta.get("first") is not None and await store.meta.get("second") is None
        assert (await store.meta.audit_log())[0]["act"] == "restore"
    finally:
        await store.close()
    assert kept is not None
    with closing(sqlite3.connect(kept)) as db:
        assert db.execute("SELECT count(*) FROM meta WHERE key = 'second'").fetchone() == (1,)
    assert backup.audit_verdict(home, None).problem is None


async def test_into_an_empty_home_and_from_an_older_schema(tmp_path: Path, older: Path, newest: int) -> None:
    home = tmp_path / "new"
    backup.check(older)
    assert backup.restore(home, older) == (None, ())
    store = await Store.open(home)
    try:
        assert (await store.versions.pointer()).live == 1
        assert await store.ratings.retract("rt-1") is not None
    finally:
        await store.close()


@pytest.mark.parametrize("what", ["text", "cut", "flipped", "newer", "other", "missing"])
async def test_what_is_not_whole_is_refused(tmp_path: Path, what: str) -> None:
    home, file = tmp_path / "home", tmp_path / "b.db"
    store = await Store.open(home)
    await _write(store)
    backup.backup(home / schema.NAME, file)
    await store.close()
    raw = bytearray(file.read_bytes())
    if what == "text":
        file.write_text("no database at all, but long enough to be taken for one" * 20)
    elif what == "cut":
        file.write_bytes(raw[: len(raw) // 2])
    elif what == "flipped":
        for at in range(4096, len(raw), 4096):  # what kind of page it is
            raw[at] ^= 0xFF
        file.write_bytes(raw)
    elif what == "newer":
        with closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA user_version = 9999")
    elif what == "other":
        file.unlink()
        with closing(sqlite3.connect(file)) as db:
            db.executescript("CREATE TABLE a (b); PRAGMA user_version = 3")
    else:
        file.unlink()
    before = (home / schema.NAME).read_bytes()
    with pytest.raises((StoreDamaged, StoreError)):
        backup.restore(home, file)
    assert (home / schema.NAME).read_bytes() == before and not list(home.glob("*.restoring"))
    await (await Store.open(home)).close()


async def test_the_log_can_neither_be_changed_nor_cut_unseen(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    for i in range(5):
        await store.meta.audit("admin", "act", {"i": i})
    await store.close()
    path = tmp_path / schema.NAME
    head = backup.audit_verdict(tmp_path, None).head
    assert backup.audit_verdict(tmp_path, head.upper()).problem is None
    assert "expect" in (backup.audit_verdict(tmp_path, "00").problem or "")
    for sql in ("UPDATE audit SET actor = 'x'", "DELETE FROM audit WHERE seq = 3", "UPDATE audit SET hash = NULL"):
        with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(sql)
    whole = path.read_bytes()
    for sql in (  # by somebody who takes the guards away
        "UPDATE audit SET detail = '{}' WHERE seq = 3",
        "UPDATE audit SET at = at + 1 WHERE seq = 5",
        "DELETE FROM audit WHERE seq = 3",
        "DELETE FROM audit WHERE seq = 5",
        "UPDATE audit SET hash = NULL WHERE seq = 4",
    ):
        path.write_bytes(whole)
        with closing(sqlite3.connect(path)) as db:
            db.executescript(f"DROP TRIGGER audit_lines_stay; DROP TRIGGER audit_lines_stay_as_they_are; {sql}")
        assert backup.audit_verdict(tmp_path, None).problem is not None, sql


async def test_ratings_come_back(tmp_path: Path, older: Path) -> None:
    store = await Store.open(older.parent)
    await store.ratings.rate(NewRating("rl-a", "ann", -1.0))
    await store.close()
    backup.backup(older, tmp_path / "b.db")
    backup.restore(tmp_path / "new", tmp_path / "b.db")
    store = await Store.open(tmp_path / "new")
    try:
        found = await store.completions.get("rl-a")
        assert found is not None and {r.rater for r in found.ratings} == {"ann", "owner"}
    finally:
        await store.close()


@pytest.mark.parametrize("to", ["no/such/folder/b.db", "file/b.db"])
async def test_a_place_where_none_can_be_made(tmp_path: Path, to: str) -> None:
    await (await Store.open(tmp_path / "home")).close()
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="No backup was made"):
        backup.backup(tmp_path / "home" / schema.NAME, tmp_path / to)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "home"]


async def test_all_that_was_forgotten_stays_so(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "b.db"
    store = await Store.open(home)
    await store.episodes.open(NewEpisode("s", "k", 0, task="zanzibar"))
    await store.episodes.open(NewEpisode("t", "k", 0, task="quokka"))
    await put(store, "a", session="s", key="k")
    await put(store, "b", "c", session="t", key="k")
    rated = await store.ratings.rate(rating("a"))
    run, _ = await claim(store, held_share=0.0)
    await store.runs.publish(
        run.id, adapter(1, run.id), {"samples": {rated.id: {"used": True}}}, 0.0, [StoredAnswerPair("b", "old", "new")]
    )
    for n, emoji in enumerate(("thumbsup", "heart")):
        await store.reactions.react(NewReaction("b", "ann", "slack", f"{n}", "c 1", emoji, 1.0, 1.0 + n))
    await store.reactions.react(NewReaction("b", "bob", "slack", "3", "c 1", "thumbsup", 1.0, 3.0))
    backup.backup(home / schema.NAME, file)
    targets: tuple[tuple[Target, str], ...] = (("session", "s"), ("rater", "ann"), ("completion", "c"))
    for kind, name in targets:
        await store.erasure.forget(kind, name, "me")
    await store.erasure.note_run_folders_cleaned(await store.erasure.owed_to_run_folders())
    await store.close()
    backup.restore(home, file)
    assert b"zanzibar" not in (home / schema.NAME).read_bytes()
    with closing(sqlite3.connect(home / schema.NAME)) as db:
        assert db.execute("SELECT id, left_out FROM episodes").fetchall() == [("t", "forgotten")]
        assert db.execute("SELECT rater, emoji FROM reactions").fetchall() == [("bob", "thumbsup")]
        assert db.execute("SELECT count(*) FROM answer_pairs").fetchone() == (0,)
