"""The store on both engines: a test with the fixture `store` runs on SQLite, and on PostgreSQL where that is here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.store import Store
from tests.store.engines import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The `url` of `Store.open`: empty for SQLite."""
    return "" if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture
async def store(tmp_path: Path, engine: str) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path, url=engine)
    yield opened
    await opened.close()
