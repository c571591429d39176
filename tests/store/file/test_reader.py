"""The connection that reads, when whoever waits for it goes away."""

from __future__ import annotations

import asyncio
import threading

from scripts.harness.records import put
from store.store import Store
from tests.store.engines import in_file


@in_file
async def test_one_who_leaves_in_the_middle_leaves_no_snapshot_behind(store: Store) -> None:
    """A client that hung up while its snapshot began left the connection in it: every later one failed, until the
    next start, and what was read by the others was of that moment."""
    reader = store._reader
    busy, free = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        free.wait()

    occupied = asyncio.ensure_future(reader._db._execute(wait))  # the thread has something else to do first
    await asyncio.to_thread(busy.wait)

    async def look() -> None:
        async with reader.snapshot():
            raise AssertionError("it had not begun when its caller left")

    leaving = asyncio.create_task(look())
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.sleep(0)
    free.set()
    await asyncio.gather(leaving, occupied, return_exceptions=True)
    assert leaving.cancelled()
    await put(store, "a")
    async with reader.snapshot() as db:
        found = await db.execute_fetchall("SELECT count(*) FROM completions")
    assert [row[0] for row in found] == [1]
