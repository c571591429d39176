from __future__ import annotations

import asyncio

from proxy.core.tasks import DelayedTask, SharedCall, Tasks


async def test_what_is_to_begin_later_begins_then() -> None:
    tasks, done = Tasks(), asyncio.Event()

    async def work() -> None:
        done.set()

    later = DelayedTask(tasks, 0.01, "work", work)
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

    later = DelayedTask(tasks, 0.0, "work", work)
    assert later.take_back() and not later.take_back()
    tasks.hurry()
    await asyncio.sleep(0.01)
    assert not begun and later.task is None


async def test_at_the_stop_all_of_it_begins() -> None:
    tasks, begun = Tasks(), []

    async def work() -> None:
        begun.append(1)

    found = [DelayedTask(tasks, 60.0, "work", work) for _ in range(3)]
    tasks.hurry()
    assert tasks.names == ["work"] * 3
    await tasks.drain_named("work", 10)
    assert begun == [1, 1, 1] and all(later.task is not None for later in found)


async def test_shared_work_is_done_once_and_ends_with_the_last_who_waits() -> None:
    began, gate = [], asyncio.Event()

    async def work() -> int:
        began.append(1)
        await gate.wait()
        return len(began)

    shared = SharedCall(work)
    waiting = [asyncio.create_task(shared.result()) for _ in range(3)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    gate.set()
    assert await asyncio.gather(*waiting[1:]) == [1, 1]
    assert await shared.result() == 2, "later it is done again"
    gate.clear()
    left = [asyncio.create_task(shared.result()) for _ in range(2)]
    await asyncio.sleep(0.01)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert len(began) == 3 and not [task for task in asyncio.all_tasks() if task.get_name() == "shared"]
