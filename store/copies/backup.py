"""Copies of the database: made while it is in use, checked before one takes its place.

Owns the files. A backup is one file, whole or not there, readable by its owner only. It has the database: what was
captured, ratings, runs, the live pointer; adapters are files of their own (`adapters_out`). One that is restored brings
back no revoked key, nothing that was forgotten since, and no session that was switched off. That is taken from the
database that it replaces, and from the files beside it (tombstones). Not here: when one is made.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from store.captured import inbox
from store.captured.rows import to_json
from store.errors import StoreDamaged, StoreError, WrongKey
from store.file import conversion, driver, integrity, meta, odd_rows, schema, tombstones, torn_log
from store.file.db_key import Secret
from store.file.lock import Lock
from store.forgetting import forget
from store.learning import keys
from store.records import Forgetting, Key

FOLDER: Final = "backups"  # in the home: those made by themselves
ACTOR: Final = "restore"
_LEARNED: Final = """SELECT u.version FROM json_each(:ratings) j CROSS JOIN run_samples s ON s.rating_id = j.value
CROSS JOIN runs u ON u.id = s.run_id WHERE u.version IS NOT NULL
UNION SELECT u.version FROM json_each(:completions) j CROSS JOIN completions c ON c.id = j.value
CROSS JOIN episodes e ON e.id = c.session AND e.key = coalesce(c.key, '')
CROSS JOIN run_episodes t ON t.episode = e.seq CROSS JOIN runs u ON u.id = t.run_id WHERE u.version IS NOT NULL"""
_REACTIONS: Final = """DELETE FROM reactions WHERE EXISTS (SELECT 1 FROM ratings r WHERE r.rater = reactions.rater
AND r.completion_id = reactions.completion_id AND r.id IN (SELECT value FROM json_each(?)))"""


class RestoreReport(NamedTuple):
    old_database: Path | None  # the database that was there before
    doubtful: tuple[Key, ...]  # keys that hold, and of which nobody here knows whether they were revoked since


class _NewerFacts(NamedTuple):
    """Knowledge of the replaced database that the backup may lack."""

    keys: list[Key]
    uncaptured: list[str]
    owed: dict[str, list[str]]  # forgotten, and run folders may still have something of it, so that it is not noted yet


def backup(database: Path, to: Path, secret: Secret | None = None) -> int:
    """One moment of the database, also of one in use; how many bytes it has. Raises StoreError, and leaves nothing.

    Of an encrypted database it is encrypted with the same key.
    """
    if not database.is_file():
        raise StoreError(f"There is no database at {database}, so there is nothing to back up.")
    if to.exists():
        raise StoreError(f"{to} exists already, nothing was written; choose another name.")
    part = to.with_name(to.name + ".part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # conversations are private
        with closing(driver.connect(database, secret, read_only=True)) as db:
            db.execute("VACUUM INTO ?", (str(part),))  # SQLCipher takes the key along
        with closing(driver.connect(part, secret)) as copy:
            meta.forget_page_secret(copy)
        check(part, secret)
        conversion.sync(part)
        part.replace(to)
        conversion.sync(to.parent)
    except driver.errors(OSError) as error:
        reason = f"{error}{driver.perhaps_encrypted(error)}"
        raise StoreError(f"No backup was made of {database} ({reason}); the database is as it was.") from error
    finally:
        with contextlib.suppress(OSError):  # where no file can be, there is none
            part.unlink()
    return to.stat().st_size


def restore(home: Path, of: Path, secret: Secret | None = None) -> RestoreReport:
    """Put a backup in the place of the database. Raises StoreBusy, StoreDamaged, StoreError.

    With `db_key` the database is encrypted afterwards, also where the backup is of a time when it was not.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(home)
    path = home / schema.NAME
    part = home / (schema.NAME + ".restoring")
    try:
        conversion.tidy(path)
        in_the_clear = of.is_file() and driver.is_plain(of)
        opened_with = None if in_the_clear else secret
        check(of, opened_with)
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(driver.connect(of, opened_with, read_only=True)) as db:
            db.execute("VACUUM INTO ?", (str(part),))
        if in_the_clear and secret is not None:
            conversion.convert(part, secret, encrypt=True, progress=lambda *_: None)
        newer_facts = _read_newer_facts(path, secret)
        doubtful = _make_current(part, of, secret, home, newer_facts)
        conversion.sync(part)
        old_database = _set_aside(path, secret)
        part.replace(path)
        conversion.sync(home)
        return RestoreReport(old_database, doubtful)
    except driver.errors(OSError) as error:
        raise StoreError(f"{of} was not restored ({error}); the database is as it was.") from error
    finally:
        conversion.wipe(part)
        conversion.tidy(part)
        lock.release()


def check(file: Path, secret: Secret | None = None) -> None:
    """Raises StoreDamaged where this is not a whole database of rlproxy, ForeignSchema where it is more than that.
    Raises StoreError where it is of a newer rlproxy."""
    if not file.is_file():
        raise StoreError(f"There is no file {file}.")
    try:
        with closing(driver.connect(file, secret, read_only=True)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"completions", "ratings", "messages", "pointer"} <= tables:
                raise StoreDamaged(f"{file} is not a database of rlproxy.")
            schema.check(db, file)
            verdicts = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
            if verdicts != ["ok"]:
                raise StoreDamaged(f"{file} is damaged ({'; '.join(verdicts)}).")
            if db.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StoreDamaged(f"{file} is damaged: rows name others that are not there.")
            odd_rows.check(db, file)
    except driver.errors() as error:
        reason = f"{error}{driver.perhaps_encrypted(error)}"
        raise StoreDamaged(f"{file} is not a database, or a damaged one ({reason}).") from error


def audit_verdict(home: Path, expected: str | None, secret: Secret | None = None) -> meta.AuditVerdict:
    """Tell whether the audit log is as it was written. Raises StoreError."""
    path = home / schema.NAME
    try:
        with closing(driver.connect(path, secret, read_only=True)) as db:
            schema.check(db, path, "audit", "meta")  # the rest may be what it is about: guards that are gone
            if schema.pending(db):
                raise StoreError(f"{path} is of an older rlproxy; start `rlproxy serve` once to bring it up to date.")
            return meta.verify(db, expected)
    except driver.errors() as error:
        reason = f"{error}{driver.perhaps_encrypted(error)}"
        raise StoreError(f"The audit log in {path} cannot be read ({reason}).") from error


def before_migration(db: sqlite3.Connection, path: Path, schema_number: int) -> Path:
    """A copy of what is about to change, encrypted as it is. Raises StoreError: without one nothing is changed."""
    folder = path.parent / FOLDER
    to = folder / f"schema-{schema_number}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}.db"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        db.execute("VACUUM INTO ?", (str(to),))
        conversion.sync(to)
        conversion.sync(folder)
    except driver.errors(OSError) as error:
        with contextlib.suppress(OSError):
            to.unlink()
        raise StoreError(
            f"No backup could be made before the database is brought up to date ({error}), so it was left as it is. "
            "Free some space and start again."
        ) from error
    return to


def expire(home: Path, cutoff: float) -> None:
    """Backups that were made by themselves go with the unrated completions that they hold. Blocking."""
    for file in (home / FOLDER).glob("schema-*.db"):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < cutoff:
                file.unlink()


def _read_newer_facts(path: Path, secret: Secret | None) -> _NewerFacts | None:
    """None where there is no database, or one that cannot be read: also where one of these is not rlproxy's table."""
    if driver.is_new(path):
        return None
    try:
        with closing(
            driver.connect(path, None if driver.is_plain(path) else secret, read_only=True, with_names=True)
        ) as db:
            schema.check(db, path, "keys", "meta")
            owed = meta.read_meta(db, forget.OWED, {})
            uncaptured = meta.read_meta(db, meta.UNCAPTURED, [])
            return _NewerFacts(keys.read_keys(db), uncaptured, owed)
    except driver.errors(StoreError):
        return None


def _make_current(
    part: Path, of: Path, secret: Secret | None, home: Path, newer_facts: _NewerFacts | None
) -> tuple[Key, ...]:
    """The newest schema, and nothing that is gone since; keys that hold now and that the later database does not know.

    What that one knows is noted beside it first: it is about to be set aside.
    """
    known_keys = [] if newer_facts is None else newer_facts.keys
    keys.note_beside(home, known_keys)
    owed = {} if newer_facts is None else newer_facts.owed
    tombstones.note_forgotten(home, [id for ids in owed.values() for id in ids])
    with closing(driver.connect(part, secret, with_names=True)) as db:
        schema.check(db, of)
        schema.migrate(db)
        for pragma in ("PRAGMA foreign_keys = ON", "PRAGMA secure_delete = ON"):
            db.execute(pragma)
        db.execute("BEGIN")
        meta.forget_page_secret(db)  # of a backup from before it was left out, or from somebody who knows it
        keys.merge(db, known_keys, ACTOR)
        keys.revoke_all(db, tombstones.revoked(home).keys, ACTOR)
        if newer_facts is not None and newer_facts.uncaptured:
            uncaptured = meta.read_meta(db, meta.UNCAPTURED, [])
            meta.set_meta(db, meta.UNCAPTURED, sorted({*uncaptured, *newer_facts.uncaptured}))
        deleted_count = _forget_again(db, tombstones.forgotten(home))
        forget.owe(db, owed)
        meta.audit(db, ACTOR, "restore", {"of": str(of)})
        db.execute("COMMIT")
        if deleted_count:
            first = True
            while inbox.purge(db, first):
                first = False
            db.execute("VACUUM")  # what was deleted may have copies in gaps of the file
        ids = {key.id for key in known_keys}
        return tuple(key for key in keys.read_keys(db) if key.revoked_at is None and key.id not in ids)


def _forget_again(db: sqlite3.Connection, hashes: frozenset[str]) -> int:
    """Delete what was forgotten after the backup was made; returns how many completions and ratings.

    All that forgetting takes goes again: episodes, a person's reactions, answers of versions that learned from it.
    """
    if not hashes:
        return 0
    completion_ids, rating_ids = (
        tuple(row["id"] for row in db.execute(f"SELECT id FROM {table}") if tombstones.hash_of(row["id"]) in hashes)  # noqa: S608
        for table in ("completions", "ratings")
    )
    if not completion_ids and not rating_ids:
        return 0
    ids = {"completions": to_json(completion_ids), "ratings": to_json(rating_ids)}
    trained = {row["version"] for row in db.execute(_LEARNED, ids)}
    parents = {row["version"]: row["parent"] for row in db.execute("SELECT version, parent FROM adapters")}
    heirs = tuple(sorted(forget.heirs_of(parents, trained)))
    db.execute(_REACTIONS, (ids["ratings"],))
    forget.erase(db, Forgetting(completion_ids, rating_ids, tuple(sorted(trained)), heirs, open_run=None))
    return len(completion_ids) + len(rating_ids)


def _set_aside(path: Path, secret: Secret | None) -> Path | None:
    """The database under another name too, and nothing of it in a WAL that the next one would take for its own."""
    if not path.exists():
        return None
    note = integrity.note_of(path)
    with contextlib.suppress(StoreDamaged):  # it leaves the note
        torn_log.check(path)
    if not note.exists():  # one that is known to be damaged keeps its log beside it
        key = None if driver.is_plain(path) else secret
        with contextlib.suppress(*driver.errors(WrongKey)), closing(driver.connect(path, key)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    set_aside = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}")
    os.link(path, set_aside)
    for ending in ("-wal", "-shm"):  # of a damaged one, which could not be checkpointed
        log = path.with_name(path.name + ending)
        if log.exists():
            log.rename(set_aside.with_name(set_aside.name + ending))
    note.unlink(missing_ok=True)  # the next one is not this
    return set_aside
