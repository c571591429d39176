"""A relay that stops at any moment leaves no connection open."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest

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
