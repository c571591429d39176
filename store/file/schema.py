"""The database file: how it is opened and brought to the newest schema.

Owns pragmas and migrations, and that a file has their tables, indexes and triggers, exactly these. A file from
elsewhere could have a trigger of its own, or a view in the place of a table. Not here: any query of the tables
(completions, ratings, runs, …), the check of a file's pages (integrity).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from store.errors import ForeignSchema, NotEncrypted, StoreDamaged, StoreError
from store.file import driver, integrity, meta, odd_rows
from store.file.db_key import Secret

BeforeMigration = Callable[[sqlite3.Connection, Path, int], Path]
Tell = Callable[[str], object]

NAME = "rlproxy.db"
MIGRATIONS: Traversable = files("store").joinpath("migrations")  # tests put a folder with a newer one in its place
CLEAN = "closed_cleanly"
CHECKPOINT_PAGES: Final = 16384  # a backstop, the writer checkpoints between commits

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # what was acknowledged survives a power cut
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",  # what was forgotten is overwritten, not only unlinked
    "PRAGMA busy_timeout = 5000",  # only a person's sqlite3 shell can be in the way
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_spill = 16384",  # pages: a conversation of many messages is not written twice, nor read in between
)


# What `ANALYZE` leaves: figures of how rows are spread, for SQLite alone.
STATISTICS: Final = frozenset({
    ("table", "sqlite_stat1", "sqlite_stat1", "CREATE TABLE sqlite_stat1(tbl,idx,stat)"),
    ("table", "sqlite_stat4", "sqlite_stat4", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"),
})  # fmt: skip
_OBJECTS: Final = "SELECT type, name, tbl_name, sql FROM sqlite_master"
SHOWN_CHARACTERS: Final = 60  # characters of a foreign name in an error


def open_database(
    path: Path,
    before_migration: BeforeMigration | None = None,
    secret: Secret | None = None,
    tell: Tell = lambda text: None,
) -> sqlite3.Connection:
    """The one connection that writes, migrated. `begin` is what comes next.

    `before_migration` keeps a copy of a database that is about to change; without it such a one is refused. With
    `db_key` it is an encrypted one, or a new one that will be. `tell` is told of what may take long. Raises StoreError.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # conversations are private
    if secret is not None and driver.is_plain(path):
        raise NotEncrypted(str(path))
    try:
        db = driver.connect(path, secret, with_names=True)
    except driver.errors() as error:
        raise StoreError(f"{path} cannot be opened: {error}.") from error
    try:
        check(db, path)
        for pragma in PRAGMAS:
            db.execute(pragma)
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if schema and pending(db):
            if before_migration is None:
                raise StoreError(f"{path} is of an older rlproxy, and no backup was asked for; nothing was changed.")
            if not was_closed(db):
                tell("The last stop was not a clean one: the database is checked before it is brought up to date.")
                integrity.check(db, path)
            tell(
                f"The database is of an earlier rlproxy (schema {schema}): it is copied first, then brought up to date."
            )
            copy = before_migration(db, path, schema)
            tell(f"The copy is {copy}; the database is brought up to date now.")
            _migrate_or_drop(db, path, schema, copy)
        else:
            migrate(db)
            if not schema:
                meta.set_meta(db, CLEAN, True)
        odd_rows.check(db, path)
    except BaseException as error:
        driver.let_go(db, path, secret)
        if isinstance(error, driver.errors()):
            raise not_opened(path, error) from error
        raise
    return db


def was_closed(db: sqlite3.Connection) -> bool:
    """Tell whether the last stop was a clean one; then the file needs no check. Where nothing says so it was not."""
    return bool(meta.read_meta(db, CLEAN, False))


def begin(db: sqlite3.Connection, recover: Callable[[sqlite3.Connection], object]) -> None:
    """In use from now on; `recover` ends what a crash left pending."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        meta.set_meta(db, CLEAN, False)
        recover(db)


def not_opened(path: Path, error: BaseException) -> StoreError:
    if driver.code(error) == driver.CORRUPT:
        return StoreDamaged(integrity.damaged(path, str(error)))
    return StoreError(f"{path} cannot be opened: {error}{driver.perhaps_encrypted(error)}.")


def numbers() -> dict[int, Traversable]:
    """All migrations by their numbers."""
    return {int(file.name[:4]): file for file in MIGRATIONS.iterdir() if file.name.endswith(".sql")}


def pending(db: sqlite3.Connection) -> list[tuple[int, Traversable]]:
    """Migrations that this file has not seen, by number. Raises StoreError where it has seen more than there are."""
    scripts = numbers()
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    if schema > max(scripts):
        raise StoreError(
            f"The database is of a newer rlproxy, or of a build before the first release (schema {schema}, this one "
            f"knows {max(scripts)}). Nothing was changed: open it with the build that made it."
        )
    return [(number, scripts[number]) for number in sorted(scripts) if number > schema]


def check(db: sqlite3.Connection, path: Path, *names: str) -> None:
    """Raises ForeignSchema where this file has anything that its migrations have not made, or lacks what they made.
    Raises StoreError where it is of a newer rlproxy. Comes first: it reads no table but SQLite's own.

    With `names`: only where that is one of these tables, for who reads nothing else and writes nothing."""
    different = differences(db)
    if words := [text for name, text in different.items() if not names or name in names]:
        raise ForeignSchema(str(path), words)


def differences(db: sqlite3.Connection) -> dict[str, str]:
    """Objects that the file's migrations made otherwise or not at all: by name, each in a few words."""
    pending(db)
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    stored = Counter(tuple(row) for row in db.execute(_OBJECTS))
    expected = made_by(schema)
    names = {name for _, name, _, _ in expected}
    foreign = {
        _printable(name): f"{'another' if name in names else 'a foreign'} {_printable(kind)} {_printable(name)}"
        for kind, name, *_ in stored - expected - Counter(STATISTICS)
    }
    lacking = {
        _printable(name): f"no {kind} {name}" for kind, name, *_ in expected - stored if _printable(name) not in foreign
    }
    return foreign | lacking


@cache
def made_by(number: int) -> Counter[tuple[str, str, str, str | None]]:
    """All that the migrations up to this one make, as SQLite notes it."""
    with closing(driver.in_memory()) as db:
        migrate(db, number)
        return Counter(tuple(row) for row in db.execute(_OBJECTS))


def _printable(name: object) -> str:
    """A name fit to be shown: whoever made the file chose it."""
    text = str(name)[:SHOWN_CHARACTERS]
    return text if text.isprintable() else repr(text)


def _migrate_or_drop(db: sqlite3.Connection, path: Path, schema: int, copy: Path) -> None:
    """Where nothing of it could be done the copy goes: each start makes another one, and a disk may be full already."""
    try:
        migrate(db)
    except driver.errors() as error:
        with contextlib.suppress(*driver.errors()):
            (now,) = db.execute("PRAGMA user_version").fetchone()
            if now == schema:
                copy.unlink(missing_ok=True)
        if driver.code(error) == driver.CORRUPT:
            raise
        raise StoreError(
            f"{path} could not be brought up to date ({error}); nothing in it was lost. It takes up to three times "
            "the file's size on the disk: free some space and start again."
        ) from error


def migrate(db: sqlite3.Connection, last: int | None = None) -> None:
    """Run the migrations that this file has not seen, up to the `last`, each in a transaction of its own.

    A table may take another's place: what refers to it is not looked at meanwhile, as SQLite's manual has it.
    """
    db.execute("PRAGMA foreign_keys = OFF")
    for number, script in pending(db):
        if last is not None and number > last:
            break
        try:
            db.executescript(f"BEGIN; {script.read_text(encoding='utf-8')}; PRAGMA user_version = {number}; COMMIT")
        except driver.errors():
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    db.execute("PRAGMA foreign_keys = ON")
