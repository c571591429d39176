"""Which copies of the database in the home still hold what is to be forgotten."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.records import put, rating
from store.copies import backup
from store.file import schema
from store.file.db_key import Secret
from store.forgetting import backup_scan
from store.records import Target
from store.store import Store
from tests.store.engines import in_file


@in_file
async def test_found_whatever_its_name_and_by_what_is_in_it(store: Store, tmp_path: Path) -> None:
    await put(store, "a", session="s", user="u")
    await store.ratings.rate(rating("a", rater="ann"))
    database = tmp_path / schema.NAME
    for name in ("backups/schema-7-x.db", "rlproxy.db.replaced-1", "deep/er/no ending"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(backup.backup, database, tmp_path / name)
    (tmp_path / "elsewhere").symlink_to(database)
    here = {"rlproxy.db.replaced-1", "deep/er/no ending", "backups/schema-7-x.db"}
    asked: list[tuple[Target, str]] = [("completion", "a"), ("session", "s"), ("user", "u"), ("rater", "ann")]
    for kind, name in asked:
        found = backup_scan.looked_through(tmp_path, kind, name)
        assert {str(f.relative_to(tmp_path)) for f in found.holding} == here and found.unread == ()
        assert backup_scan.looked_through(tmp_path, kind, "another") == ((), ())
    before = sorted(tmp_path.rglob("*"))
    backup_scan.delete(backup_scan.looked_through(tmp_path, "rater", "ann").holding)
    assert len(before) - len(sorted(tmp_path.rglob("*"))) == 3  # no log was left beside any
    assert database.exists() and backup_scan.looked_through(tmp_path, "session", "s") == ((), ())


async def test_a_copy_with_a_log_of_its_own_is_read_with_it_and_goes_with_it(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    store = await Store.open(other)
    await put(store, "a", session="s")
    home.mkdir()
    for ending in ("", "-wal"):  # as a restore sets it aside while the power goes
        (home / f"rlproxy.db.replaced-1{ending}").write_bytes((other / f"{schema.NAME}{ending}").read_bytes())
    await store.close()
    found = backup_scan.looked_through(home, "session", "s")
    assert [file.name for file in found.holding] == ["rlproxy.db.replaced-1"]
    backup_scan.delete(found.holding)
    assert list(home.iterdir()) == []


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "encrypted.db").write_bytes(os.urandom(8192))
    (tmp_path / "broken").write_bytes(backup_scan.MAGIC + os.urandom(8192))
    (tmp_path / "notes.txt").write_text("SQLite format 3")
    with closing(sqlite3.connect(tmp_path / "theirs.sqlite")) as db:
        db.execute("CREATE TABLE songs (name TEXT)")
    found = backup_scan.looked_through(tmp_path, "session", "s")
    assert found.holding == () and [f.name for f in found.unread] == ["broken", "encrypted.db", "theirs.sqlite"]


def test_copies_of_an_older_schema_can_be_looked_into(tmp_path: Path, older: Path, newest: int) -> None:
    assert [f.name for f in backup_scan.looked_through(tmp_path, "completion", "rl-a").holding] == [older.name]
    assert backup_scan.looked_through(tmp_path, "rater", "nobody at all") == ((), ())


@pytest.mark.parametrize("secret", [Secret("ab" * 32), Secret("correct horse battery staple")], ids=["key", "phrase"])
async def test_encrypted_ones_are_looked_into_too(tmp_path: Path, secret: Secret) -> None:
    pytest.importorskip("sqlcipher3")
    store = await Store.open(tmp_path, secret)
    try:
        await put(store, "a", session="s")
        await asyncio.to_thread(backup.backup, tmp_path / schema.NAME, tmp_path / "kept.db", secret)
        for name in ("monday", "rlproxy.db.replaced-20261130-031000-000001"):  # no name and no magic tells the first
            (tmp_path / name).write_bytes((tmp_path / "kept.db").read_bytes())
        (tmp_path / "noise").write_bytes(os.urandom(8192))
        found = await store.erasure.copies_with(tmp_path, "session", "s")
        copies = ["kept.db", "monday", "rlproxy.db.replaced-20261130-031000-000001"]
        assert [file.name for file in found.holding] == copies and found.unread == ()
        assert await store.erasure.copies_with(tmp_path, "session", "another") == ((), ())
        unread = backup_scan.looked_through(tmp_path, "session", "s", Secret("cd" * 32)).unread
        assert unread == (tmp_path / "kept.db", tmp_path / copies[2])
    finally:
        await store.close()
