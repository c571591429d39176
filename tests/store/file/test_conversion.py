"""A database that changes its form: whole in the old one or the new one, whenever it is killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.command import python
from scripts.harness.records import end, new
from store.copies import backup, encryption
from store.errors import (
    MissingExtra,
    NotEncrypted,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    WrongKey,
    translated,
)
from store.file import conversion, driver, schema
from store.file.db_key import Secret
from store.records import Message, NewRating
from store.store import Store

KEY, OTHER = Secret("ab" * 32), Secret("cd" * 32)
PASSPHRASE = Secret("correct horse battery staple")
PLANTED = "xylophone-quagmire-0451"
ROOT = Path(__file__).parents[3]


def quietly(*_: object) -> None:
    pass


async def fill(home: Path, secret: Secret | None = None, *, rows: int = 40) -> None:
    store = await Store.open(home, secret)
    for n in range(rows):
        said = Message("user", f'"{PLANTED} {n} {"long " * 200}"'.encode())
        await store.completions.record([new(f"rl-{n}", prompt=(said,))], [end(f"rl-{n}", text=f"{PLANTED} {n}")])
    await store.ratings.rate(NewRating("rl-1", "ann", 1.0, comment=PLANTED))
    await store.inbox.index_words()
    await store.close()


async def holds(home: Path, secret: Secret | None, *, rows: int = 40, good: int = 1) -> None:
    """All that `fill` stored, in the log and in the search, too."""
    store = await Store.open(home, secret)
    try:
        assert (await store.stats.counts())["done"] == rows and (await store.stats.counts())["good"] == good
        found = await store.completions.get("rl-1")
        assert found is not None and found.end is not None and found.end.text.startswith(PLANTED)
        assert backup.audit_verdict(home, None, secret).problem is None
        await store.meta.set("written", True)
    finally:
        await store.close()


def in_the_clear(folder: Path) -> list[str]:
    return sorted(
        str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file() and PLANTED.encode() in f.read_bytes()
    )


@pytest.mark.parametrize("secret", [KEY, PASSPHRASE], ids=["key", "passphrase"])
async def test_there_and_back(tmp_path: Path, secret: Secret) -> None:
    await fill(tmp_path)
    assert in_the_clear(tmp_path) == [schema.NAME]
    done = encryption.encrypt(tmp_path, secret, quietly)
    assert done.files == [tmp_path / schema.NAME] and not done.failures
    assert in_the_clear(tmp_path) == [] and encryption.is_encrypted(tmp_path)
    await holds(tmp_path, secret)
    assert encryption.encrypt(tmp_path, secret, quietly).files == []
    assert [f.name for f in tmp_path.glob("rlproxy.db*")] == [schema.NAME]
    assert (tmp_path / schema.NAME).stat().st_mode & 0o777 == 0o600
    encryption.decrypt(tmp_path, secret, quietly)
    await holds(tmp_path, None)


async def test_nothing_of_it_in_the_log_either(tmp_path: Path) -> None:
    """While it is written to: the database, its log and what is beside them."""
    store = await Store.open(tmp_path, KEY)
    try:
        await store.completions.record([new("rl-1")], [end("rl-1", text=PLANTED)])
        await store.inbox.index_words()
        assert (tmp_path / "rlproxy.db-wal").stat().st_size > 0 and (tmp_path / "rlproxy.db-shm").exists()
        assert in_the_clear(tmp_path) == []
    finally:
        await store.close()
    assert in_the_clear(tmp_path) == []


async def test_the_wrong_key_the_other_form_and_no_key(tmp_path: Path) -> None:
    clear, dark = tmp_path / "clear", tmp_path / "dark"
    await fill(clear, rows=3)
    await fill(dark, KEY, rows=3)
    before = (dark / schema.NAME).read_bytes()
    with pytest.raises(WrongKey, match="does not open"):
        await Store.open(dark, OTHER)
    with pytest.raises(StoreError, match=r"store\.key_from has to name its key"):
        await Store.open(dark)
    with pytest.raises(NotEncrypted, match="run `rlproxy encrypt`"):
        await Store.open(clear, KEY)
    for act in (encryption.encrypt, encryption.decrypt):
        with pytest.raises(WrongKey):
            act(dark, OTHER, quietly)
    assert (dark / schema.NAME).read_bytes() == before
    await holds(dark, KEY, rows=3)
    await holds(clear, None, rows=3)


async def test_backups_and_those_set_aside(tmp_path: Path, older: Path, newest: int) -> None:
    home, file = older.parent, tmp_path / "kept" / "b.db"
    file.parent.mkdir()
    await (await Store.open(home)).close()  # brings it up to date: a backup is made by itself
    (before,) = (home / "backups").iterdir()
    await fill(home)
    backup.backup(home / schema.NAME, file)
    aside = backup.restore(home, file).old_database
    assert aside is not None
    done = encryption.encrypt(home, KEY, quietly)
    assert sorted(done.files) == sorted([home / schema.NAME, before, aside])
    assert in_the_clear(home) == [] and not driver.is_plain(before)
    encrypted = tmp_path / "e.db"
    backup.backup(home / schema.NAME, encrypted, KEY)
    assert not driver.is_plain(encrypted) and in_the_clear(tmp_path) == ["kept/b.db"]
    with pytest.raises(StoreError, match="key_from"):
        backup.backup(home / schema.NAME, tmp_path / "no.db")
    with pytest.raises(WrongKey):
        backup.restore(home, encrypted, OTHER)
    with pytest.raises(StoreDamaged, match="key_from"):
        backup.restore(tmp_path / "new", encrypted)
    backup.restore(home, encrypted, KEY)
    assert in_the_clear(home) == []
    backup.restore(home, file, KEY)  # of a time when nothing was encrypted
    assert in_the_clear(home) == []
    await holds(home, KEY, rows=41, good=2)  # with those of the old one


async def test_a_migration_keeps_an_encrypted_copy(older: Path, newest: int) -> None:
    encryption.encrypt(older.parent, KEY, quietly)
    store = await Store.open(older.parent, KEY)
    assert (await store.versions.pointer()).live == 1
    await store.close()
    (kept,) = (older.parent / "backups").iterdir()
    assert not driver.is_plain(kept)
    backup.check(kept, KEY)


async def test_a_backup_under_a_passphrase_needs_only_it(tmp_path: Path) -> None:
    await fill(tmp_path / "home", PASSPHRASE, rows=3)
    backup.backup(tmp_path / "home" / schema.NAME, tmp_path / "b.db", PASSPHRASE)
    backup.restore(tmp_path / "new", tmp_path / "b.db", Secret("correct horse battery staple"))
    await holds(tmp_path / "new", PASSPHRASE, rows=3)


async def test_a_log_that_a_kill_has_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code = (
        "import asyncio, os, sys, signal\nfrom pathlib import Path\nfrom store.store import Store\n"
        "async def main():\n    store = await Store.open(Path(sys.argv[1]))\n"
        f"    await store.meta.set('k', {PLANTED!r})\n    os.kill(os.getpid(), signal.SIGKILL)\nasyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(home)], cwd=ROOT).returncode == -signal.SIGKILL
    assert "rlproxy.db-wal" in in_the_clear(home)
    encryption.encrypt(home, KEY, quietly)
    assert in_the_clear(home) == [] and [f.name for f in home.glob("rlproxy.db*")] == [schema.NAME]
    store = await Store.open(home, KEY)
    assert await store.meta.get("k") == PLANTED
    await store.close()


async def test_what_is_damaged_open_elsewhere_or_without_room_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    path = tmp_path / schema.NAME
    store = await Store.open(tmp_path)
    with pytest.raises(StoreBusy), encryption.owned(tmp_path):
        pass
    await store.close()
    monkeypatch.setattr(conversion, "ROOM", 2**60)
    with pytest.raises(StoreError, match="are needed beside"):
        encryption.encrypt(tmp_path, KEY, quietly)
    monkeypatch.undo()
    code = (
        "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN')\ndb.execute('SELECT count(*) FROM meta').fetchone()\n"
        "print('here', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == b"here\n"
        with pytest.raises(StoreError, match="Another program has"):
            encryption.encrypt(tmp_path, KEY, quietly)
        shell.communicate(b"")
    await holds(tmp_path, None)
    raw = bytearray(path.read_bytes())
    for at in range(4096 * 3, len(raw), 4096):
        raw[at] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(StoreError):
        encryption.encrypt(tmp_path, KEY, quietly)
    assert path.read_bytes() == raw and not list(tmp_path.glob("*.converting*"))


async def test_a_copy_that_is_not_the_same_is_not_taken(tmp_path: Path) -> None:
    await fill(tmp_path)

    def meddle(path: Path, step: conversion.Step, share: float) -> None:
        if step == "compare" and share == 0.0:
            with closing(driver.connect(path.with_name(path.name + conversion.COPY), KEY)) as db:
                db.execute("UPDATE ratings SET value = -value")

    with pytest.raises(StoreError, match="other rows in ratings"):
        encryption.encrypt(tmp_path, KEY, meddle)
    await holds(tmp_path, None)


async def test_a_second_name_somewhere_is_somebodys_copy(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await fill(home, rows=3)
    os.link(home / schema.NAME, tmp_path / "snapshot.db")
    encryption.encrypt(home, KEY, quietly)
    with closing(sqlite3.connect(tmp_path / "snapshot.db")) as db:
        assert db.execute("SELECT count(*) FROM completions").fetchone() == (3,)


def test_overwritten_from_its_end_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * (3 * conversion.BLOCK + 5))
    with file.open("rb") as still:
        conversion.wipe(file)
        assert not file.exists() and len(left := still.read()) == 3 * conversion.BLOCK + 5 and b"xxxx" not in left


CHILD = """
import os, signal, sys
from pathlib import Path
from store.copies import encryption
from store.file.db_key import Secret
home, act, at = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
print("ready", flush=True)
def told(path, step, share):
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)
getattr(encryption, act)(home, Secret("ab" * 32), told)
"""


@pytest.mark.parametrize("act", ["encrypt", "decrypt"])
@pytest.mark.parametrize("at", ["check", "copy", "compare", "link", "swap", "wipe", "done"])
async def test_killed_at_each_step(tmp_path: Path, act: str, at: str) -> None:
    was = KEY if act == "decrypt" else None
    await fill(tmp_path, was, rows=5)
    status, _, err = await python(CHILD, str(tmp_path), act, at)
    assert status == -signal.SIGKILL, err
    form = KEY if encryption.is_encrypted(tmp_path) else None  # and tidies up
    assert (form == was) == (at not in ("wipe", "done"))
    assert [f.name for f in tmp_path.glob("rlproxy.db*")] == [schema.NAME]
    assert in_the_clear(tmp_path) == ([] if form else [schema.NAME])
    await holds(tmp_path, form, rows=5)
    getattr(encryption, act)(tmp_path, KEY, quietly)
    await holds(tmp_path, KEY if act == "encrypt" else None, rows=5)


async def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Back and forth, each time killed after a while; whatever it was doing, the next start finds all of it."""
    dice, done = random.Random(20261121), 0
    await fill(tmp_path, rows=60)
    for n in range(12):
        form = encryption.is_encrypted(tmp_path)
        act = "decrypt" if form else "encrypt"
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), act, "never"], cwd=ROOT, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(dice.uniform(0.0, 0.4))
            child.kill()
        await holds(tmp_path, KEY if encryption.is_encrypted(tmp_path) else None, rows=60)
        done += encryption.is_encrypted(tmp_path) != form
        assert [f.name for f in tmp_path.glob("rlproxy.db*")] == [schema.NAME], n
    assert 0 <= done <= 12


async def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(tmp_path / "dark", KEY, rows=2)
    monkeypatch.setitem(sys.modules, "sqlcipher3", None)
    with pytest.raises(MissingExtra, match=r"rlproxy\[encrypt\]"):
        await Store.open(tmp_path / "dark", KEY)


def test_no_sqlite_older_than_the_fix_of_its_log() -> None:
    assert driver.sqlcipher().sqlite_version_info >= (3, 51, 3)
    assert int(driver.version().split(".")[0]) >= 4


def test_errors_are_excepted_by_their_one_name() -> None:
    """SQLCipher's are no sqlite3.Error: whoever excepts those alone lets an encrypted database's through."""
    for room in ("store", "proxy"):
        for file in (ROOT / room).rglob("*.py"):
            text = file.read_text()
            for word in ("except sqlite3.", "suppress(sqlite3.", ", sqlite3.Error", "sqlite3.connect("):
                assert word not in text or file.name == "driver.py", f"{file} has {word}"


def test_a_full_disk_is_known_by_its_code_whichever_sqlite_says_it(tmp_path: Path) -> None:
    for name, secret in (("a", None), ("b", KEY)):
        with closing(driver.connect(tmp_path / name, secret)) as db:
            db.execute("CREATE TABLE t (x)")
            db.execute("PRAGMA max_page_count = 3")
            with pytest.raises(driver.errors()) as full:
                db.execute("INSERT INTO t VALUES (?)", ("x" * 100_000,))
            assert isinstance(translated(full.value), StoreFull)
