"""The store on both engines: a test with the fixture `store` runs on SQLite, and on PostgreSQL where that is here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scripts.harness.postgres import LACKS, PostgresServer, find_binaries
from store.store import Store
from tests.store.engines import ENGINES

NO_PACKAGE = "psycopg is not installed: `pip install 'rlproxy[postgres]'`"
EMPTY = "rlproxy_empty"  # a database with our tables, which each test gets a copy of


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server; the test is skipped where there are no binaries of one."""
    pytest.importorskip("psycopg_pool", reason=NO_PACKAGE)
    from store.postgres import schema
    from store.postgres.connection import PostgresConnection

    if (binaries := find_binaries()) is None:
        pytest.skip(LACKS)
    server = PostgresServer(binaries)
    try:
        server.start()
        server.execute(f"CREATE DATABASE {EMPTY}")
        with closing(PostgresConnection(server.url(EMPTY))) as db:
            schema.migrate(db)
        yield server
    finally:
        server.close()


@pytest.fixture
def durable() -> Iterator[PostgresServer]:
    """A server of the test's own, which may be killed: it waits for its disk."""
    pytest.importorskip("psycopg_pool", reason=NO_PACKAGE)
    if (binaries := find_binaries()) is None:
        pytest.skip(LACKS)
    server = PostgresServer(binaries, durable=True)
    server.start()
    yield server
    server.close()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The address of a database with our tables and nothing in them."""
    name = postgres.create(EMPTY)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The `url` of `Store.open`: empty for SQLite."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture
async def store(tmp_path: Path, engine: str) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path, url=engine)
    yield opened
    await opened.close()
