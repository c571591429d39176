"""The tables in PostgreSQL: made at the first start, brought to the newest schema at a later one.

Owns which migrations a database has seen. They have the numbers of SQLite's (store/migrations): a home of one engine
can be copied to the other where both have the same. Two relays that start together wait for one another. Not here:
queries.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from store.errors import StoreError
from store.postgres import server
from store.postgres.connection import PostgresConnection

MIGRATIONS: Traversable = files("store").joinpath("postgres", "migrations")
FUNCTIONS: Traversable = files("store").joinpath("postgres", "functions.sql")
LEAST_VERSION: Final = 140000  # of the server
LOCK: Final = 7_205_759_404
_STATE: Final = f"""CREATE SCHEMA IF NOT EXISTS {server.SCHEMA};
CREATE TABLE IF NOT EXISTS {server.SCHEMA}.schema_state (number bigint NOT NULL, functions text NOT NULL)"""
_EXISTS: Final = f"SELECT to_regclass('{server.SCHEMA}.schema_state') IS NOT NULL AS made"
_COLLATION: Final = """SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu')
THEN '"und-x-icu"' ELSE '"default"' END AS name"""


def is_made(db: PostgresConnection) -> bool:
    """Tell whether the database has our tables."""
    return bool(db.execute(_EXISTS).fetchone()["made"])


def migrate(db: PostgresConnection) -> None:
    """Raises StoreError where the database is of a newer rlproxy, or is none that rlproxy can use."""
    _check_server(db)
    db.execute("SELECT pg_advisory_lock(?)", (LOCK,))
    try:
        if not is_made(db):
            db.run_script(_STATE)
        row = db.execute("SELECT number, functions FROM schema_state").fetchone()
        number, functions = (0, "") if row is None else (row["number"], row["functions"])
        scripts = numbers()
        if number > max(scripts):
            raise StoreError(
                f"The database is of a newer rlproxy (schema {number}, this one knows {max(scripts)}). Nothing was "
                "changed: bring this relay up to date, too."
            )
        text = functions_for(db)
        digest = hashlib.sha256(text.encode()).hexdigest()
        pending = [scripts[n].read_text(encoding="utf-8") for n in sorted(scripts) if n > number]
        if pending or functions != digest:
            state = f"DELETE FROM schema_state; INSERT INTO schema_state VALUES ({max(scripts)}, '{digest}')"  # noqa: S608
            db.run_script(";\n".join(["BEGIN", text, *pending, state, "COMMIT"]))
    finally:
        db.execute("SELECT pg_advisory_unlock(?)", (LOCK,))


def functions_for(db: PostgresConnection) -> str:
    """The functions that SQLite has and PostgreSQL lacks, with the best collation that this server knows."""
    return FUNCTIONS.read_text(encoding="utf-8").replace("{collation}", db.execute(_COLLATION).fetchone()["name"])


@cache
def numbers() -> dict[int, Traversable]:
    """All migrations by their numbers."""
    return {int(file.name[:4]): file for file in MIGRATIONS.iterdir() if file.name.endswith(".sql")}


def _check_server(db: PostgresConnection) -> None:
    row = db.execute(
        "SELECT current_setting('server_version_num')::integer AS version, current_setting('server_encoding') AS code"
    ).fetchone()
    if row["version"] < LEAST_VERSION:
        raise StoreError(f"PostgreSQL {row['version'] // 10000} is too old: rlproxy needs 14 or newer.")
    if row["code"] != "UTF8":
        raise StoreError(
            f"The database has the encoding {row['code']}, and conversations need UTF8: make another one, with "
            "`createdb --encoding=UTF8 --template=template0 NAME`. Nothing was changed."
        )
