"""A judge with a rule in a model's place, behind a real socket; and what it works with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from scripts.harness.rule_judge import FakeJudge
from store.store import Store


def pushback(request: str, reply: str, follow_up: str) -> str:
    """`no, …` and `shorter` are corrections, `that works` is a success."""
    if follow_up.startswith("no,") or "shorter" in follow_up:
        return "correction"
    return "solved" if "that works" in follow_up else "nothing"


@pytest.fixture
async def judge() -> AsyncIterator[FakeJudge]:
    fake = FakeJudge(pushback)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """In a folder of its own: these tests have other files beside it."""
    opened = await Store.open(tmp_path / "home")
    yield opened
    await opened.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def at(store: Store, http: aiohttp.ClientSession) -> tuple[Store, aiohttp.ClientSession]:
    return store, http
