from __future__ import annotations

import asyncio

from proxy.core.tasks import Later, Tasks


async def test_what_is_to_begin_later_begins_then() -> None:
    tasks, done = Tasks(), asyncio.Event()

    async def work() -> None:
        done.set()

    later = Later(tasks, 0.01, "work", work)
    assert later.task is None and tasks.names == []
    async with asyncio.timeout(10):
        await done.wait()
    assert later.task is not None and not later.take_back()
    tasks.hurry()  # not a second time
    await later.task
    await asyncio.sleep(0)  # its callback runs in the next turn of the loop
    assert tasks.names == []


async def test_what_is_taken_back_never_begins() -> None:
    tasks, begun = Tasks(), []

    async def work() -> None:
        begun.append(1)

    later = Later(tasks, 0.0, "work", work)
    assert later.take_back() and not later.take_back()
    tasks.hurry()
    await asyncio.sleep(0.01)
    assert not begun and later.task is None


async def test_at_the_stop_all_of_it_begins() -> None:
    tasks, begun = Tasks(), []

    async def work() -> None:
        begun.append(1)

    found = [Later(tasks, 60.0, "work", work) for _ in range(3)]
    tasks.hurry()
    assert tasks.names == ["work"] * 3
    await tasks.drain_named("work", 10)
    assert begun == [1, 1, 1] and all(later.task is not None for later in found)
