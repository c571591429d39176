"""A home's database from SQLite to PostgreSQL, and back.

Owns which rows go and in which order. A batch and the place behind it are one transaction, so that a kill costs one
batch, and the same call goes on. At the end each table has the same number of rows on both sides, and the same sum of
their hashes. Only then the new database is one that rlproxy opens. The old one stays as it is. The search is not
copied: it is made anew of the texts. Not here: words and progress (proxy.cli.database.migrate).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from store.errors import ForeignSchema, StoreError
from store.file import conversion, driver, meta, schema
from store.file.db_key import Secret
from store.file.lock import Lock
from store.postgres import schema as postgres_schema
from store.postgres import server
from store.postgres.connection import PostgresConnection
from store.postgres.relays import CLOCK, LATELY_S

Progress = Callable[[str, int, int], None]  # a table, rows of it that are there, and how many it has

STATE: Final = "migration"  # the meta key, in the new database until the end
ENGINE_VALUES: Final = (STATE, schema.CLEAN, "learner")  # values of one engine alone
BATCH: Final = 500  # rows
PART: Final = ".migrating"  # the ending of SQLite's file until the end
# Each after those that it names. A message comes after its parent where they are read in their first order (rowid).
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "requests": ("hash",), "prompt_blocks": ("hash",), "blobs": ("hash",), "messages": ("hash",),
    "completions": ("seq",), "completion_system": ("completion_id", "at"), "message_blobs": ("message", "at"),
    "items": ("id", "completion_id"), "ratings": ("seq",), "links": ("platform", "channel", "message_id"),
    "reactions": ("completion_id", "rater", "platform", "message", "emoji"),
    "webhook_events": ("platform", "event_id"), "signals": ("seq",), "judged_pairs": ("seq",),
    "completion_lessons": ("completion_id", "at"), "guesses": ("completion_id",), "runs": ("id",),
    "run_samples": ("run_id", "rating_id"), "adapters": ("version",), "pointer": ("one",), "episodes": ("seq",),
    "turn_rewards": ("episode", "completion_id"), "run_episodes": ("run_id", "episode"), "listed": ("seq",),
    "keys": ("id",), "meta": ("key",), "audit": ("seq",), "experiments": ("id",),
    "experiment_turns": ("completion_id",), "flags": ("completion_id",), "images": ("blob",),
    "forgotten": ("hash",), "lessons": ("rating_id",), "lines": ("name",), "answer_pairs": ("version", "position"),
}  # fmt: skip
LEFT_OUT: Final = {"listed": "searched"}  # made anew
_ROWID: Final = ("requests", "prompt_blocks", "blobs", "messages")  # SQLite's, in the order in which they came


class MigrationReport(NamedTuple):
    rows: dict[str, int]  # by table
    seconds: float
    old_database: str | None  # that was set aside, on the way back


class _Table(NamedTuple):
    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]


def to_postgres(home: Path, url: str, secret: Secret | None, progress: Progress) -> MigrationReport:
    """No rlproxy may run in this home. Raises StoreError; then the same call goes on where this one has ended."""
    path = home / schema.NAME
    if not path.is_file():
        raise StoreError(f"{path} does not exist, so nothing was migrated.")
    lock = Lock(home)
    try:
        with _saying(url), closing(driver.connect(path, secret, with_names=True)) as old:
            schema.check(old, path)
            if schema.pending(old):
                raise StoreError(f"{path} is of an older rlproxy; start `rlproxy serve` once to bring it up to date.")
            with closing(PostgresConnection(url)) as new:
                postgres_schema.migrate(new)
                _refuse_running(new)
                return _migrate(old, cast(sqlite3.Connection, new), _tables(old), progress, rowids=True)
    finally:
        lock.release()


def to_sqlite(home: Path, url: str, progress: Progress) -> MigrationReport:
    """No relay may run. A database that is in the home already is set aside. Raises StoreError, as above."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(home)
    path = home / schema.NAME
    part = path.with_name(path.name + PART)
    try:
        with _saying(url), closing(PostgresConnection(url)) as old:
            postgres_schema.migrate(old)
            _refuse_running(old)
            with closing(_open_part(part)) as new:
                objects = schema.made_by(max(schema.numbers()))
                triggers = [(name, sql) for kind, name, _, sql in objects if kind == "trigger" and sql]
                new.execute("PRAGMA foreign_keys = OFF")
                for name, _ in triggers:
                    new.execute(f"DROP TRIGGER IF EXISTS {name}")
                report = _migrate(cast(sqlite3.Connection, old), new, _tables(new), progress, rowids=False)
                if new.execute("PRAGMA foreign_key_check").fetchone() is not None:
                    raise StoreError("Rows of the copy name others that are not there; the database is as it was.")
                for _, sql in triggers:
                    new.execute(sql)
                meta.set_meta(new, schema.CLEAN, True)
                new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        old_database = _set_aside(path)
        part.replace(path)
        conversion.sync(home)
        return report._replace(old_database=old_database)
    finally:
        lock.release()


def _open_part(part: Path) -> sqlite3.Connection:
    """The new file; one that a kill has left has no triggers, which the check of a file would miss."""
    if part.exists():
        with contextlib.suppress(ForeignSchema):
            return schema.open_database(part)
        return driver.connect(part, None, with_names=True)
    return schema.open_database(part)


@contextlib.contextmanager
def _saying(url: str) -> Iterator[None]:
    try:
        yield
    except driver.errors(OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StoreError(
            f"The migration has stopped ({reason}; {server.place_of(url)}). The old database is as it was. Run the "
            "same command again: it goes on from here."
        ) from error


def _refuse_running(db: PostgresConnection) -> None:
    row = db.execute(f"SELECT max(host) AS host FROM relays WHERE seen_at > {CLOCK} - {LATELY_S}").fetchone()  # noqa: S608  ours
    if row["host"] is not None:
        raise StoreError(
            f"A relay on {row['host']} was at work in this database less than {LATELY_S:.0f} s ago: stop all relays, "
            "wait, and try again. Nothing was changed."
        )


def _tables(db: sqlite3.Connection) -> list[_Table]:
    """The columns as SQLite has them: PostgreSQL has the same."""
    return [
        _Table(name, tuple(row["name"] for row in db.execute(f"PRAGMA table_info({name})")), keys)
        for name, keys in KEYS.items()
    ]


def _migrate(
    old: sqlite3.Connection, new: sqlite3.Connection, tables: Sequence[_Table], progress: Progress, *, rowids: bool
) -> MigrationReport:
    """`rowids`: the old one has SQLite's, by which parents come before their children."""
    start = time.monotonic()
    state: dict[str, Any] | None = meta.read_meta(new, STATE, None)
    if state is None:
        _refuse_rows(new, tables)
        state = {"done": [], "after": None}
        with _transaction(new):
            for name in ("pointer", "meta"):
                new.execute(f"DELETE FROM {name}")  # noqa: S608  ours
            meta.set_meta(new, STATE, state)
    counts: dict[str, int] = {}
    for table in tables:
        counts[table.name] = _count(old, table)
        if table.name not in state["done"]:
            _copy(old, new, table, state, counts[table.name], progress, rowids=rowids and table.name in _ROWID)
    for table in tables:
        expected, copied = _digest(old, table), _digest(new, table)
        if expected != copied:
            raise StoreError(
                f"The copy has other rows in {table.name} ({copied[0]}, and {expected[0]} were expected): somebody has "
                "written meanwhile. The old database is as it was; begin with an empty one."
            )
    with _transaction(new):
        _copy_numbers(old, new)
        new.execute("DELETE FROM meta WHERE key = ?", (STATE,))
    return MigrationReport(counts, time.monotonic() - start, None)


def _refuse_rows(new: sqlite3.Connection, tables: Sequence[_Table]) -> None:
    """Raises StoreError where somebody has used the new database, if only to make a key."""
    for table in tables:
        if table.name in ("pointer", "meta"):  # rows of an empty one
            continue
        if new.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone() is not None:  # noqa: S608  ours
            raise StoreError(f"The new database has {table.name} of its own, so nothing was copied: take an empty one.")


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _copy(
    old: sqlite3.Connection, new: sqlite3.Connection, table: _Table, state: dict[str, Any], total: int,
    progress: Progress, *, rowids: bool,
) -> None:  # fmt: skip
    names = ", ".join(f'"{column}"' for column in table.columns)
    marks = ", ".join("?" * len(table.columns))
    insert = f"INSERT INTO {table.name} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608  ours
    position = None if state["after"] is None else [_unpacked(key) for key in state["after"]]
    count = 0
    progress(table.name, 0, total)
    for rows, last in _pages(old, table, position, rowids=rowids):
        state["after"] = [_packed(key) for key in last]
        with _transaction(new), _without_triggers(new, table.name):
            new.executemany(insert, [tuple(row) for row in rows])
            meta.set_meta(new, STATE, state)
        count += len(rows)
        progress(table.name, count, total)
    state["done"].append(table.name)
    state["after"] = None
    with _transaction(new):
        meta.set_meta(new, STATE, state)


def _pages(
    db: sqlite3.Connection, table: _Table, position: list[Any] | None, *, rowids: bool = False
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Rows by a few hundred, and the keys of the last one."""
    keys = ("rowid",) if rowids else table.keys
    left_out = LEFT_OUT.get(table.name)
    columns = ", ".join("0" if column == left_out else f'"{column}"' for column in table.columns)
    order = ", ".join(keys)
    condition = f" AND key NOT IN ({', '.join(repr(key) for key in ENGINE_VALUES)})" if table.name == "meta" else ""
    while True:
        bound = "1 = 1" if position is None else f"({order}) > ({', '.join('?' * len(keys))})"
        sql = f"SELECT {columns}, {order} FROM {table.name} WHERE {bound}{condition} ORDER BY {order} LIMIT {BATCH}"  # noqa: S608
        rows = [tuple(row) for row in db.execute(sql, position or ())]
        if not rows:
            return
        position = list(rows[-1][-len(keys) :])
        yield [row[: -len(keys)] for row in rows], position


def _count(db: sqlite3.Connection, table: _Table) -> int:
    condition = f" WHERE key NOT IN ({', '.join(repr(key) for key in ENGINE_VALUES)})" if table.name == "meta" else ""
    row = db.execute(f"SELECT count(*) AS count FROM {table.name}{condition}").fetchone()  # noqa: S608  ours
    return int(row["count"])


def _digest(db: sqlite3.Connection, table: _Table) -> tuple[int, int]:
    """How many rows, and the sum of their hashes: the same rows in any order."""
    count = total = 0
    for rows, _ in _pages(db, table, None):
        for row in rows:
            total += int.from_bytes(hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass")).digest()[:16], "big")
        count += len(rows)
    return count, total % 2**128


@contextlib.contextmanager
def _without_triggers(db: sqlite3.Connection, table: str) -> Iterator[None]:
    """Turn triggers off in this transaction: what they would make is copied, too. SQLite's are gone until the end."""
    if not isinstance(db, PostgresConnection):
        yield
        return
    db.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    yield
    db.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def _copy_numbers(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """The last number that each table has given: a deleted row's is never given again."""
    for name, seq in [tuple(row) for row in old.execute("SELECT name, seq FROM sqlite_sequence")]:
        if not new.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (seq, name)).rowcount:
            new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, seq))


def _packed(key: Any) -> Any:
    return {"hex": key.hex()} if isinstance(key, bytes) else key


def _unpacked(key: Any) -> Any:
    return bytes.fromhex(key["hex"]) if isinstance(key, dict) else key


def _set_aside(path: Path) -> str | None:
    if not path.exists():
        return None
    old_path = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}")
    for ending in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path.with_name(path.name + ending), old_path.with_name(old_path.name + ending))
    path.rename(old_path)
    return str(old_path)


def unfinished(db: PostgresConnection) -> bool:
    """Tell whether a migration into this database has not come to its end."""
    return meta.read_meta(cast(sqlite3.Connection, db), STATE, None) is not None
