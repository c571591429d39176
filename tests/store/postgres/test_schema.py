"""The tables of both engines are the same, so that a home can be copied from one to the other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.postgres import PostgresServer
from store.errors import StoreError
from store.file import schema as sqlite_schema
from store.postgres import schema
from store.postgres.connection import PostgresConnection
from store.store import Store

pytestmark = pytest.mark.postgres
OWN = {"counters", "relays", "relay_rows", "schema_state"}  # what PostgreSQL alone has
SEARCH = "search"


def test_both_engines_have_the_same_migrations() -> None:
    assert max(schema.numbers()) == max(sqlite_schema.numbers())


def test_both_engines_have_the_same_columns_in_the_same_order(database: str, tmp_path: Path) -> None:
    with closing(sqlite_schema.open_database(tmp_path / "x.db")) as db:
        rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        tables = {row[0] for row in rows if not row[0].startswith(("sqlite_", SEARCH))}
        columns = {t: [row["name"] for row in db.execute(f"PRAGMA table_info({t})")] for t in tables}
    with closing(PostgresConnection(database)) as there:
        rows = there.execute(
            """SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'rlproxy'
            ORDER BY table_name, ordinal_position"""
        ).fetchall()
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(table, []).append(column)
    assert set(found) - OWN - {SEARCH} == set(columns)
    # A column that a later migration of SQLite added stands where PostgreSQL's table has it from the beginning.
    assert {table: sorted(names) for table, names in columns.items()} == {
        table: sorted(names) for table, names in found.items() if table in columns
    }
    for table, names in columns.items():  # rows that are stored by their places
        if table in ("messages", "completion_system", "blobs", "message_blobs", "prompt_blocks", "requests", "items",
                     "webhook_events", "run_samples", "run_episodes", "meta", "experiment_turns",
                     "completion_lessons", "pointer"):  # fmt: skip
            assert found[table] == names


async def test_a_second_start_changes_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.url(postgres.create())
    for _ in range(2):
        store = await Store.open(tmp_path, url=url)
        await store.meta.set("x", 1)
        await store.close()


async def test_a_database_of_a_newer_rlproxy_is_left_alone(database: str, tmp_path: Path) -> None:
    with closing(PostgresConnection(database)) as db:
        db.execute("UPDATE schema_state SET number = 9999")
    with pytest.raises(StoreError, match="newer rlproxy"):
        await Store.open(tmp_path, url=database)


async def test_one_without_utf8_is_refused_with_what_to_do(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreError, match="createdb --encoding=UTF8"):
        await Store.open(tmp_path, url=postgres.url("latin"))


def test_sqlite_is_untouched(tmp_path: Path) -> None:
    """No query of PostgreSQL's is in SQLite's file."""
    with closing(sqlite_schema.open_database(tmp_path / "x.db")) as db:
        assert isinstance(db, sqlite3.Connection)
        assert not {row[0] for row in db.execute("SELECT name FROM sqlite_schema")} & OWN
