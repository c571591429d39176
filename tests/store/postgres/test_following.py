"""A relay that stops at any moment leaves no connection open."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing, closing

import pytest

from store.postgres import following, relays
from store.postgres.connection import PostgresConnection
from store.postgres.following import Following

pytestmark = pytest.mark.postgres


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_a_stop_in_any_step_of_the_connection_closes_it(database: str) -> None:
    async def follow() -> None:
        async with aclosing(Following(database, "relay").changes()) as changes:
            async for _ in changes:
                return

    for steps in range(60):
        task = asyncio.create_task(follow())
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()


async def test_a_relay_learns_though_the_learner_before_it_goes_on_to_be_seen(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the database another one may be the first to take the lock. The one before is alive."""
    monkeypatch.setattr(following, "POLL_S", 0.2)
    monkeypatch.setattr(following, "STOPPED_S", 1.5)
    with closing(PostgresConnection(database)) as connection:
        relays.note_seen(connection, "before")
        connection.execute("INSERT INTO meta VALUES ('learner', '\"before\"')")

    async def follow(each: Following) -> None:
        async with aclosing(each.changes()) as changes:
            async for _ in changes:
                pass

    next_one, before = Following(database, "next"), Following(database, "before")
    tasks = [asyncio.create_task(follow(next_one))]
    await asyncio.sleep(0.5)
    assert not next_one.leads, "the one before may train still"
    tasks.append(asyncio.create_task(follow(before)))
    try:
        async with asyncio.timeout(20):
            await next_one.leading()
        assert not before.leads
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
