"""A relay that stops at any moment leaves no connection open; another one learns then, whatever their clocks say."""

from __future__ import annotations

import asyncio
import gc
import time
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

    gc.freeze()  # a collection looks at what a stop leaves, and not at all that other tests have imported
    for steps in range(60):
        task = asyncio.create_task(follow())
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
    gc.unfreeze()


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_how_long_a_learner_was_silent_goes_by_the_clock_of_the_database(
    database: str, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """By its own clock, two hours ahead, nobody else learned for two hours; by one behind two may have trained."""
    with closing(PostgresConnection(database)) as db:
        with monkeypatch.context() as clock:
            now = time.time()
            clock.setattr(time, "time", lambda: now + ahead_s)
            relays.note_seen(db, "theirs")
        db.execute(following._NOTE_LEARNER, ("theirs",))
        row = db.execute(following._LAST_LEARNER, ("ours",)).fetchone()
        assert 0 <= row["silent_s"] < 60
        assert relays.hosts(db) == [f"{relays.host()} (trains)"]


async def test_a_relay_learns_though_the_learner_before_it_goes_on_to_be_seen(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the database another one may be the first to take the lock. The one before is alive."""
    monkeypatch.setattr(following, "POLL_S", 0.2)
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
    monkeypatch.setattr(following, "STOPPED_S", 1.5)
    tasks.append(asyncio.create_task(follow(before)))
    try:
        async with asyncio.timeout(20):
            await next_one.leading()
        assert not before.leads
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
