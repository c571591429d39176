"""A database from elsewhere that acts by itself: rlproxy opens only files that are as its migrations make them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.command import rlproxy
from store.copies import backup, encryption, read_only
from store.errors import ForeignSchema, StoreError
from store.file import driver, schema, schema_report
from store.file.db_key import VARIABLE, Secret
from store.forgetting import backup_scan
from store.records import Key
from store.store import Store

SECRET = Secret("ab" * 32)
EVE = Key("e0e0e0e0", "eve", "admin", b"e" * 32, 1.0)
# Each file, and a word of the error about it.
FOREIGN = {
    "a trigger that brings a revoked key back": (
        "CREATE TRIGGER again AFTER UPDATE OF revoked_at ON keys BEGIN"
        " UPDATE keys SET revoked_at = NULL WHERE id = NEW.id; END",
        "a foreign trigger again",
    ),
    "a trigger that adds an admin": (
        "CREATE TRIGGER more AFTER INSERT ON audit BEGIN INSERT OR IGNORE INTO keys (id, name, role, hash, created_at)"
        " VALUES ('f0f0f0f0', 'mallory', 'admin', x'00', 1); END",
        "a foreign trigger more",
    ),
    "a trigger of ours that says something else": (
        "DROP TRIGGER audit_lines_stay; CREATE TRIGGER audit_lines_stay BEFORE DELETE ON audit BEGIN SELECT 1; END",
        "another trigger audit_lines_stay",
    ),
    "a trigger of ours that is gone": ("DROP TRIGGER audit_lines_stay", "no trigger audit_lines_stay"),
    "a view": ("CREATE VIEW v AS SELECT * FROM keys", "a foreign view v"),
    "a view in the place of a table": (
        "ALTER TABLE links RENAME TO real_links; CREATE VIEW links AS SELECT * FROM real_links;"
        " CREATE TRIGGER t INSTEAD OF INSERT ON links BEGIN SELECT 1; END",
        "another view links",
    ),
    "a view without an end": (
        "DROP TABLE links; CREATE VIEW links AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " SELECT i AS platform, i AS channel, i AS message_id, i AS completion_id FROM n",
        "another view links",
    ),
    "a table": ("CREATE TABLE t (a)", "a foreign table t"),
    "an index": ("CREATE INDEX i ON keys (name)", "a foreign index i"),
    "an index over an expression": ("CREATE INDEX i ON keys (length(hex(zeroblob(length(name)))))", "index i"),
    "a virtual table": ("CREATE VIRTUAL TABLE v USING fts5(a)", "a foreign table v"),
    "a generated column": (
        "ALTER TABLE keys ADD COLUMN g TEXT GENERATED ALWAYS AS (hex(zeroblob(1000))) VIRTUAL",
        "another table keys",
    ),
    "another default": ("ALTER TABLE keys ADD COLUMN g TEXT DEFAULT 'x'", "another table keys"),
    "a column less": ("ALTER TABLE links DROP COLUMN key", "another table links"),
    "a check less": (
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'CHECK (role', 'CHECK (name OR role')"
        " WHERE name = 'keys'",
        "another table keys",
    ),
    "a name that a terminal obeys": ('CREATE TABLE "\x1b[31mred" (a)', "\\x1b[31mred"),
    "a schema of no number": ("PRAGMA user_version = 0", "a foreign table"),
    "a schema before all numbers": ("PRAGMA user_version = -1", "a foreign table"),
}


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A home whose key was revoked after a backup of it was made."""
    home = tmp_path / "home"
    store = await Store.open(home)
    await store.keys.add(EVE, "admin")
    await store.keys.note()
    await asyncio.to_thread(backup.backup, home / schema.NAME, tmp_path / "backup.db")
    await store.keys.revoke("eve", "admin")
    await store.keys.note()
    await store.close()
    return home


@pytest.fixture
def foreign(home: Path, what: str) -> Path:
    file = home.parent / "backup.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.executescript(FOREIGN[what][0])
    return file


def in_words(what: str, refusal: pytest.ExceptionInfo[ForeignSchema]) -> None:
    text = str(refusal.value)
    assert FOREIGN[what][1] in text and "The file and the home are as they were" in text and text.isprintable()


@pytest.mark.parametrize("what", FOREIGN)
async def test_it_is_not_restored(home: Path, foreign: Path, what: str) -> None:
    before = {file: file.read_bytes() for file in home.iterdir() if file.is_file()}
    with pytest.raises(ForeignSchema) as refusal:
        backup.restore(home, foreign)
    in_words(what, refusal)
    assert {file: file.read_bytes() for file in home.iterdir() if file.is_file()} == before
    store = await Store.open(home)
    assert [key.revoked_at is not None for key in await store.keys.all()] == [True]
    await store.close()


@pytest.mark.parametrize("what", FOREIGN)
async def test_nothing_else_opens_it_either(home: Path, foreign: Path, what: str) -> None:
    """Copied into the home by hand, or there as a backup of an earlier time."""
    path = home / schema.NAME
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    shutil.copy(foreign, path)
    raw = path.read_bytes()
    with pytest.raises(ForeignSchema) as refusal:
        await Store.open(home)
    in_words(what, refusal)
    with pytest.raises(ForeignSchema):
        async with read_only.look(home):
            pass
    with pytest.raises(StoreError):
        backup.backup(path, home.parent / "again.db")
    with encryption.owned(home), pytest.raises(ForeignSchema):
        encryption.encrypt(home, SECRET, lambda *_: None)
    assert schema_report.outline(path) == {"error": "ForeignSchema"}
    (home / "copy.db").write_bytes(raw)
    assert backup_scan.looked_through(home, "user", "ann").unread == (home / "copy.db",)
    assert path.read_bytes() == raw and not (home.parent / "again.db").exists()


async def test_a_copy_in_the_home_is_left_as_it_is(home: Path) -> None:
    """`rlproxy encrypt` turns all that it knows, and says what it left."""
    (home / backup.FOLDER).mkdir()
    file = home / backup.FOLDER / "schema-1.db"
    shutil.copy(home.parent / "backup.db", file)
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE t (a)")
    with encryption.owned(home):
        done = encryption.encrypt(home, SECRET, lambda *_: None)
    assert done.files == [home / schema.NAME] and "a foreign table t" in done.failures[file]


async def test_nor_is_an_encrypted_one(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "backup.db"
    store = await Store.open(home, SECRET)
    await asyncio.to_thread(backup.backup, home / schema.NAME, file, SECRET)
    await store.close()
    with closing(driver.connect(file, SECRET)) as db:
        db.execute("CREATE TRIGGER again AFTER INSERT ON keys BEGIN SELECT 1; END")
    with pytest.raises(ForeignSchema, match="a foreign trigger again"):
        backup.restore(home, file, SECRET)
    shutil.copy(file, home / schema.NAME)
    with pytest.raises(ForeignSchema, match="a foreign trigger again"):
        await Store.open(home, SECRET)


async def test_a_sound_backup_takes_the_place_of_a_foreign_database(home: Path) -> None:
    """What its own tables know still counts; a view in their place says nothing."""
    file, path = home.parent / "backup.db", home / schema.NAME
    (home / "rlproxy.revoked").unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (a)")
    assert backup.restore(home, file).doubtful == ()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT revoked_at IS NOT NULL FROM keys").fetchall() == [(1,)]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(
            "ALTER TABLE meta RENAME TO m; CREATE VIEW meta AS WITH RECURSIVE n(i) AS"
            " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS key, i AS value FROM n"
        )
    started = time.monotonic()
    assert [key.name for key in backup.restore(home, file).doubtful] == []
    assert time.monotonic() - started < 30


async def test_the_audit_log_is_read_from_its_own_table_alone(home: Path) -> None:
    """It is asked for where somebody may have taken its guards away."""
    path = home / schema.NAME
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TRIGGER audit_lines_stay")
    assert backup.audit_verdict(home, None).problem is None
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE audit RENAME TO a; CREATE VIEW audit AS SELECT * FROM a")
    with pytest.raises(ForeignSchema, match="another view audit"):
        backup.audit_verdict(home, None)


async def test_figures_of_how_rows_are_spread_are_not_foreign(home: Path) -> None:
    for file in (home / schema.NAME, home.parent / "backup.db"):
        with closing(sqlite3.connect(file)) as db:
            db.execute("ANALYZE")
    await (await Store.open(home)).close()
    backup.restore(home, home.parent / "backup.db")
    await (await Store.open(home)).close()


async def test_an_older_schema_is_ours_under_its_own_number_alone(home: Path, newest: int) -> None:
    file = home.parent / "backup.db"
    backup.check(file)
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"PRAGMA user_version = {newest}")
    with pytest.raises(ForeignSchema, match="no table moods"):
        backup.check(file)


def test_no_schema_calls_what_acts_outside(tmp_path: Path) -> None:
    """A file that is only looked at, before it is known to be ours."""
    for name, secret in (("a.db", None), ("b.db", SECRET)):
        with closing(driver.connect(tmp_path / name, secret)) as db:
            db.execute("CREATE TABLE t (a)")
        with closing(driver.connect(tmp_path / name, secret, read_only=True)) as db:
            assert db.execute("PRAGMA trusted_schema").fetchone()[0] == 0


async def test_the_command_says_it_and_changes_nothing(home: Path) -> None:
    file = home.parent / "backup.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute(FOREIGN["a trigger that brings a revoked key back"][0])
    code, _, err = await rlproxy(home, "restore", str(file))
    assert code != 0 and "a foreign trigger again" in err and "was not opened" in err
    code, out, err = await rlproxy(home, "keys", "list", "--json", **{VARIABLE: ""})
    assert code == 0 and '"revoked_at": null' not in out, err
