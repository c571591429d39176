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

    for steps in range(60):
        following = asyncio.create_task(follow())
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        following.cancel()
        await asyncio.wait([following])
        del following
        gc.collect()


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
