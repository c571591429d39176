"""Which SQLite opens a database: Python's own, or SQLCipher where there is a key.

Owns connections, the key in them, and what their errors are called. A process must not open one file with both: each
has its own copy of SQLite, and the one that closes drops the other's locks. For the same reason nobody may read the
file of a database that is open here (`is_plain`, the salt of a passphrase). Not here: where a key comes from (db_key),
pragmas and migrations (schema).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from store.errors import MissingExtra, WrongKey
from store.file.db_key import SALT_BYTES, Secret

PLAIN_HEADER: Final = b"SQLite format 3\0"
CORRUPT: Final = 11  # SQLITE_CORRUPT
CORRUPT_SEARCH: Final = 267  # SQLITE_CORRUPT_VTAB: the search's index alone, which is made of the rows
CONSTRAINT: Final = 19  # SQLITE_CONSTRAINT
POSTGRES_CONSTRAINT: Final = "23"  # the class of these among PostgreSQL's states
NOT_A_DATABASE: Final = 26  # SQLITE_NOTADB, what a wrong key looks like
# What a file's own schema may call: functions and virtual tables without an effect outside. Not where something is
# written: our own trigger on the search's index is one too many for that.
UNTRUSTED: Final = "PRAGMA trusted_schema = OFF"
NO_EXTRA: Final = (
    "the database's key is set but SQLCipher is not installed: `pip install 'rlproxy[encrypt]'`; nothing was changed."
)


def connect(
    path: Path, secret: Secret | None, *, read_only: bool = False, with_names: bool = False, immutable: bool = False
) -> sqlite3.Connection:
    """A connection in autocommit mode. Raises WrongKey, MissingExtra, `errors()`.

    `with_names`: its rows have names. `immutable`: nobody else has the file, and looking leaves no log beside it.
    """
    address = f"file:{quote(os.fspath(path))}?mode={'ro' if read_only else 'rwc'}{'&immutable=1' if immutable else ''}"
    options: dict[str, Any] = {"uri": True, "isolation_level": None, "check_same_thread": False}
    if secret is None:
        db: sqlite3.Connection = sqlite3.connect(address, **options)
        db.row_factory = sqlite3.Row if with_names else None
        if read_only:
            db.execute(UNTRUSTED)
        return db
    secret, cipher = of_file(secret, path), sqlcipher()
    db = cast(sqlite3.Connection, cipher.connect(address, **options))
    db.row_factory = cipher.Row if with_names else None
    try:
        quiet(db)
        db.execute(f'PRAGMA key = "{secret.for_cipher}"')
        if read_only:
            db.execute(UNTRUSTED)
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the key is only looked at with the first page
    except errors() as error:
        db.close()
        if code(error) == NOT_A_DATABASE:
            raise WrongKey(str(path)) from None
        raise
    return db


def let_go(db: sqlite3.Connection, path: Path, secret: Secret | None) -> None:
    """Close a connection and leave the log beside the file as it is.

    The last one that closes moves the log into the file, unless it may only read.
    """
    with contextlib.suppress(*errors(WrongKey)), closing(connect(path, secret, read_only=True)) as reader:
        hold(reader)
        db.close()
    db.close()


def hold(reader: sqlite3.Connection) -> None:
    """Have the log open from now on: a connection that has read nothing yet does not count."""
    reader.execute("PRAGMA schema_version").fetchone()


def in_memory() -> sqlite3.Connection:
    """An empty database that is gone with its connection."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.row_factory = sqlite3.Row
    return db


def connect_unkeyed(path: Path) -> sqlite3.Connection:
    """SQLCipher on a file in the clear, for what goes from one form to the other."""
    uri = f"file:{quote(os.fspath(path))}?mode=rwc"
    db = cast(sqlite3.Connection, sqlcipher().connect(uri, uri=True, isolation_level=None))
    quiet(db)
    return db


def quiet(db: sqlite3.Connection) -> None:
    """SQLCipher would tell a wrong key on stderr, line by line; we say it in one sentence."""
    db.execute("PRAGMA cipher_log_level = NONE").fetchall()


def is_plain(path: Path) -> bool:
    """Tell whether this file is a database in the clear. Not of one that this process has open."""
    with path.open("rb") as file:
        return file.read(len(PLAIN_HEADER)) == PLAIN_HEADER


def is_new(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def errors(*additional: type[Exception]) -> tuple[type[Exception], ...]:
    """Errors to except: those of SQLCipher and of PostgreSQL are not sqlite3.Error, and are only there once their
    package has been imported. Where a name in the schema is damaged, SQLite's own sentence about it is not UTF-8, and
    Python raises that instead."""
    kinds: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError, *additional)
    for name in ("sqlcipher3.dbapi2", "psycopg"):
        if (package := sys.modules.get(name)) is not None:
            kinds += (package.Error,)
    return kinds


def perhaps_encrypted(error: BaseException) -> str:
    """Other errors of a file that is not a database to us: without its key an encrypted one looks like noise."""
    return " (or it is encrypted, and store.key_from has to name its key)" if code(error) == NOT_A_DATABASE else ""


def code(error: BaseException) -> int:
    """SQLite's primary code, also of PostgreSQL's violated constraints; 0 where Python itself raised it."""
    if (getattr(error, "sqlstate", None) or "").startswith(POSTGRES_CONSTRAINT):
        return CONSTRAINT
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def tells_of_damage(error: BaseException) -> bool:
    """Tell whether SQLite met a page that cannot be what was written."""
    extended = getattr(error, "sqlite_errorcode", None)
    return code(error) in (CORRUPT, NOT_A_DATABASE) and extended != CORRUPT_SEARCH


def sqlcipher() -> Any:
    try:
        from sqlcipher3 import dbapi2
    except ImportError:
        raise MissingExtra(NO_EXTRA) from None
    return dbapi2


def version() -> str:
    with closing(sqlcipher().connect(":memory:")) as db:
        return str(db.execute("PRAGMA cipher_version").fetchone()[0])


def of_file(secret: Secret, path: Path) -> Secret:
    """The key for this file, whose first bytes are its salt; of a new one they are chosen here."""
    if not secret.needs_salt:
        return secret
    if is_new(path):
        return secret.salted(os.urandom(SALT_BYTES))
    with path.open("rb") as file:
        return secret.salted(file.read(SALT_BYTES))
