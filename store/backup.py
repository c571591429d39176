"""Copies of the database: made while it is in use, checked before one takes its place.

Owns the files. A backup is one file, whole or not there, readable by its owner only. It has the database: what was
captured, ratings, runs, the live pointer; adapters are files of their own (`adapters_out`). Not here: when one is made.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from store import ledger, schema
from store.errors import StoreDamaged, StoreError
from store.lock import Lock

FOLDER: Final = "backups"  # in the home: those made by themselves


def backup(database: Path, to: Path) -> int:
    """One moment of the database, also of one in use; how many bytes it has. Raises StoreError, and leaves nothing."""
    if not database.is_file():
        raise StoreError(f"There is no database at {database}, so there is nothing to back up.")
    if to.exists():
        raise StoreError(f"{to} exists already, nothing was written; choose another name.")
    part = to.with_name(to.name + ".part")
    part.unlink(missing_ok=True)
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # conversations are private
        with closing(_read_only(database)) as db:
            db.execute("VACUUM INTO ?", (str(part),))
        check(part)
        _sync(part)
        part.replace(to)
        _sync(to.parent)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"No backup was made of {database} ({error}); the database is as it was.") from error
    finally:
        part.unlink(missing_ok=True)
    return to.stat().st_size


def restore(home: Path, of: Path) -> Path | None:
    """Put a backup in the place of the database; where that is kept now. Raises StoreBusy, StoreDamaged, StoreError."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(home)
    path = home / schema.NAME
    part = home / (schema.NAME + ".restoring")
    try:
        check(of)
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(_read_only(of)) as db:
            db.execute("VACUUM INTO ?", (str(part),))
        _make_current(part, of)
        _sync(part)
        kept = _set_aside(path)
        part.replace(path)
        _sync(home)
        return kept
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{of} was not restored ({error}); the database is as it was.") from error
    finally:
        part.unlink(missing_ok=True)
        lock.release()


def check(file: Path) -> None:
    """Raises StoreDamaged where this is no whole database of ours, StoreError where it is of a newer rlproxy."""
    if not file.is_file():
        raise StoreError(f"There is no file {file}.")
    try:
        with closing(_read_only(file)) as db:
            verdicts = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
            if verdicts != ["ok"]:
                raise StoreDamaged(f"{file} is damaged ({'; '.join(verdicts)}).")
            if db.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StoreDamaged(f"{file} is damaged: rows name others that are not there.")
            schema.pending(db)
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(f"{file} is no database, or a damaged one ({error}).") from error
    if not {"completions", "ratings", "messages", "pointer"} <= tables:
        raise StoreDamaged(f"{file} is no database of rlproxy's.")


def audit_verdict(home: Path, expected: str | None) -> ledger.Verdict:
    """Whether the audit log is as it was written. Raises StoreError."""
    path = home / schema.NAME
    try:
        with closing(_read_only(path)) as db:
            if schema.pending(db):
                raise StoreError(f"{path} is of an older rlproxy; start `rlproxy serve` once to bring it up to date.")
            return ledger.verify(db, expected)
    except sqlite3.Error as error:
        raise StoreError(f"The audit log in {path} cannot be read ({error}).") from error


def before_migration(db: sqlite3.Connection, path: Path, seen: int) -> Path:
    """A copy of what is about to change. Raises StoreError: without one nothing is changed."""
    folder = path.parent / FOLDER
    to = folder / f"schema-{seen}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}.db"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        db.execute("VACUUM INTO ?", (str(to),))
        _sync(to)
        _sync(folder)
    except (sqlite3.Error, OSError) as error:
        with contextlib.suppress(OSError):
            to.unlink()
        raise StoreError(
            f"No backup could be made before the database is brought up to date ({error}), so it was left as it is; "
            "free some space and start again."
        ) from error
    return to


def expire(home: Path, before: float) -> None:
    """Backups that were made by themselves go with the unrated completions that they hold. Blocking."""
    for file in (home / FOLDER).glob("schema-*.db"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()


def _make_current(part: Path, of: Path) -> None:
    with closing(sqlite3.connect(part, isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        schema.migrate(db)
        db.execute("BEGIN")
        ledger.audit(db, "restore", "restore", {"of": str(of)})
        db.execute("COMMIT")


def _set_aside(path: Path) -> Path | None:
    """The database under another name too, and nothing of it in a WAL that the next one would take for its own."""
    if not path.exists():
        return None
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}")
    os.link(path, kept)
    for ending in ("-wal", "-shm"):  # of a damaged one, which could not be checkpointed
        beside = path.with_name(path.name + ending)
        if beside.exists():
            beside.rename(kept.with_name(kept.name + ending))
    return kept


def _read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fspath(file))}?mode=ro", uri=True, isolation_level=None)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
