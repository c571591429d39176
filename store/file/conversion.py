"""One database file from the clear to encrypted, or back.

Owns a file that changes its form. A copy is made beside it, compared row by row, and takes its place in one rename. A
crash at any point leaves the old one or the new one whole, and `tidy` removes what lay beside it. Not here: which files
of a home those are (encryption), where a key comes from (db_key).

    NAME.converting     the copy, not finished
    NAME.before         a second name of the old one while it is replaced, so that it can be overwritten
    NAME-wal.before     the same of a log that a kill had left
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

from store.errors import StoreDamaged, StoreError
from store.file import driver, schema, torn_log
from store.file.db_key import Secret

Step = Literal["check", "copy", "compare", "link", "swap", "wipe", "done"]
Progress = Callable[[Path, Step, float], None]  # the file, what is done with it now, and which share of that is done

COPY: Final = ".converting"
OLD: Final = ".before"
ROOM: Final = 16 * 2**20  # bytes more than the copy itself
OPCODES: Final = 100_000  # of SQLite's machine between two words of progress
BLOCK: Final = 2**20


def convert(path: Path, secret: Secret, *, encrypt: bool, progress: Progress) -> None:
    """Nobody else may have the file open. Raises StoreError; then, and on any crash, the database is as it was."""
    tidy(path)
    log = path.with_name(path.name + "-wal")
    key = driver.of_file(secret, path.with_name(path.name + COPY) if encrypt else path)
    copy = path.with_name(path.name + COPY)
    torn_log.check(path)
    try:
        progress(path, "check", 0.0)
        _has_room(path)
        os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        if encrypt and log.exists():
            os.link(log, log.with_name(log.name + OLD))  # SQLite only takes its name away
        with closing(_open_exclusively(path, None if encrypt else key)) as db:
            progress(path, "copy", 0.0)
            _export(db, path, copy, key.for_cipher if encrypt else "", progress)
            progress(path, "compare", 0.0)
            with closing(driver.connect(copy, key) if encrypt else driver.connect_unkeyed(copy)) as copy_db:
                _same(db, copy_db, path, progress)
        sync(copy)
        wipe_journal(path)
        progress(path, "link", 0.0)
        os.link(path, path.with_name(path.name + OLD))
        progress(path, "swap", 0.0)
        copy.replace(path)
        sync(path.parent)
    except driver.errors(OSError) as error:
        raise StoreError(
            f"{path} was not {'encrypted' if encrypt else 'decrypted'} ({error}); it is as it was."
        ) from error
    finally:
        wipe(copy)
    progress(path, "wipe", 0.0)
    tidy(path)
    progress(path, "done", 1.0)


def tidy(path: Path) -> None:
    """Leftovers of a killed conversion beside a database. The database itself is whole in any case."""
    for ending in ("", "-journal", "-wal", "-shm"):
        wipe(path.with_name(path.name + COPY + ending))  # of a decryption it would be in the clear
    old = path.with_name(path.name + OLD)
    if old.exists() and not driver.is_plain(old):
        old.unlink()  # it was the encrypted one
    settle(path, old)
    settle(path.with_name(path.name + "-wal"), path.with_name(f"{path.name}-wal{OLD}"))


def settle(path: Path, old: Path) -> None:
    """A second name of what was there before: it goes, and its bytes with it where the file has been replaced."""
    if old.exists():
        if path.exists() and old.samefile(path):
            old.unlink()  # killed before the swap: it is the file itself
        else:
            wipe(old)
        sync(path.parent)


def wipe(path: Path) -> None:
    """Overwrite and delete. A file with another name elsewhere only loses this one: the other is somebody's copy."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        if status.st_nlink == 1:
            with path.open("r+b", buffering=0) as file:
                # Backwards: what a kill leaves half done still begins as what it is.
                for offset in reversed(range(0, status.st_size, BLOCK)):
                    file.seek(offset)
                    file.write(os.urandom(min(BLOCK, status.st_size - offset)))
                os.fsync(file.fileno())
        path.unlink()


def wipe_journal(path: Path) -> None:
    """A rollback journal that a kill left. Only after SQLite has opened the database: then it is of no more use."""
    wipe(path.with_name(path.name + "-journal"))


def _has_room(path: Path) -> None:
    need = sum(f.stat().st_size for f in (path, path.with_name(path.name + "-wal")) if f.exists()) * 1.05 + ROOM
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise StoreError(
            f"{need / 1e6:.0f} MB are needed beside {path} while it is converted and {free / 1e6:.0f} MB are free; "
            "nothing was changed."
        )


def _open_exclusively(path: Path, key: Secret | None) -> sqlite3.Connection:
    """A connection that nobody can get in the way of, with nothing left in a log. Raises StoreError."""
    db = driver.connect_unkeyed(path) if key is None else driver.connect(path, key)
    try:
        schema.check(db, path)
        db.execute("PRAGMA secure_delete = ON")
        with contextlib.suppress(*driver.errors()):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            mode = db.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")  # kept until the connection is closed
            db.execute("COMMIT")
        except driver.errors() as error:
            if driver.code(error) == driver.NOT_A_DATABASE:
                raise
            mode = str(error)
        if mode != "delete":
            raise StoreError(f"Another program has {path} open ({mode}); end it and try again. Nothing was changed.")
        verdicts = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
        if verdicts != ["ok"]:
            raise StoreDamaged(f"{path} is damaged ({'; '.join(verdicts)}); nothing was changed.")
    except BaseException:
        db.close()
        raise
    return db


def _export(db: sqlite3.Connection, path: Path, copy: Path, key: str, progress: Progress) -> None:
    size = max(1, path.stat().st_size)

    def word() -> int:
        progress(path, "copy", min(1.0, copy.stat().st_size / size))
        return 0

    db.execute("ATTACH DATABASE ? AS made KEY ?", (str(copy), key))
    db.execute("PRAGMA made.journal_mode = OFF").fetchall()  # a copy that is not finished is thrown away
    db.execute("PRAGMA made.synchronous = OFF")
    db.set_progress_handler(word, OPCODES)
    db.execute("SELECT sqlcipher_export('made')").fetchall()
    db.set_progress_handler(None, 0)
    for name in ("user_version", "application_id"):
        db.execute(f"PRAGMA made.{name} = {int(db.execute(f'PRAGMA main.{name}').fetchone()[0])}")
    db.execute("DETACH DATABASE made")


def _same(old: sqlite3.Connection, new: sqlite3.Connection, path: Path, progress: Progress) -> None:
    """Raises StoreError where the copy is not the same in schema and rows, or is not whole."""
    verdicts = [str(row[0]) for row in new.execute("PRAGMA integrity_check(3)")]
    if verdicts != ["ok"]:
        raise StoreError(f"The copy of {path} is damaged ({'; '.join(verdicts)}); the database is as it was.")
    if _shape(old) != _shape(new):
        raise StoreError(f"The copy of {path} has another schema; the database is as it was.")
    tables = [name for kind, name, sql in _shape(old)[0] if kind == "table" and not _virtual(sql)]
    for n, table in enumerate(tables):
        if digest(old, table) != digest(new, table):
            raise StoreError(f"The copy of {path} has other rows in {table}; the database is as it was.")
        progress(path, "compare", (n + 1) / len(tables))


def digest(db: sqlite3.Connection, table: str) -> tuple[int, int]:
    """How many rows, and the sum of their hashes: the same rows in any order."""
    count = total = 0
    quoted = table.replace('"', '""')
    for row in db.execute(f'SELECT * FROM "{quoted}"'):  # noqa: S608, a name from the schema itself
        total += int.from_bytes(hashlib.blake2b(repr(tuple(row)).encode(), digest_size=32).digest(), "big")
        count += 1
    return count, total % 2**256


def _shape(db: sqlite3.Connection) -> tuple[list[tuple[str, str, str | None]], int, int]:
    rows = sorted(db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master").fetchall())
    (version,), (application,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")
    )
    return [(str(kind), str(name), str(sql)) for kind, name, sql in rows], int(version), int(application)


def _virtual(sql: str | None) -> bool:
    return (sql or "").upper().startswith("CREATE VIRTUAL")


def sync(path: Path) -> None:
    """A file or a folder is on disk when this returns. Blocking; raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def throttled(progress: Progress, every_s: float = 0.5) -> Progress:
    """The same, but a step that goes on is told no more often than this."""
    last: dict[str, float] = {}

    def report(path: Path, step: Step, share: float) -> None:
        now = time.monotonic()
        if share in (0.0, 1.0) or now - last.get(step, 0.0) >= every_s:
            last[step] = now
            progress(path, step, share)

    return report
