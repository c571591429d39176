"""The door: who is inside, who waits, in which order, and for how long at most."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.sections import ServerSection
from proxy.core.errors import BackendDown
from proxy.core.sharing import waiting_line
from proxy.versions import admission as doors
from proxy.versions.admission import Admission


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_line, "BEAT_S", 0.01)
    monkeypatch.setattr(doors, "POLL_S", 0.005)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_go_in_as_they_came() -> None:
    door, went = Admission(ServerSection()), []

    async def pass_through(n: int) -> None:
        async with door.through():
            went.append(n)

    door.close("It rests")
    tasks = [asyncio.create_task(pass_through(n)) for n in range(5)]
    await settled()
    assert went == [] and door.waiting == 5
    tasks[2].cancel()
    await settled()
    door.open()
    await settled()
    tasks.append(asyncio.create_task(pass_through(9)))
    await asyncio.gather(*tasks, return_exceptions=True)
    assert went == [0, 1, 3, 4, 9] and await door.emptied(0, lambda: False)


async def test_nobody_waits_longer_than_the_deadline() -> None:
    door = Admission(ServerSection(hold_s=0.05))
    door.close("The model rests while run 3 trains")
    beats = []

    async def beat() -> None:
        beats.append(1)

    with pytest.raises(BackendDown, match=r"The model rests while run 3 trains, .*server.hold_s") as caught:
        async with door.through(beat):
            pytest.fail("it was let in")
    assert caught.value.status == 503 and caught.value.retry_after and beats and not door.waiting


async def test_a_client_that_went_away_while_it_was_told_to_wait_is_not_inside() -> None:
    door = Admission(ServerSection())
    door.close("It rests")

    async def gone() -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        async with door.through(gone):
            pytest.fail("it was let in")
    assert not door.waiting and await door.emptied(0, lambda: False)


async def test_too_many_and_no_wish_to_wait_are_refused_at_once() -> None:
    door = Admission(ServerSection(hold_most=0))
    door.close("It rests")
    for refused in (door.through(), door.through(wait=False)):
        with pytest.raises(BackendDown):
            async with refused:
                pytest.fail("it was let in")


async def test_turned_away() -> None:
    door = Admission(ServerSection())

    async def pass_through() -> None:
        async with door.through():
            pass

    door.close("It rests")
    waits = asyncio.create_task(pass_through())
    await settled()
    door.turn_away("rlproxy is stopping")
    for one in (waits, asyncio.create_task(pass_through())):
        with pytest.raises(BackendDown, match="rlproxy is stopping"):
            await one


async def test_draining_ends_with_the_last_one_or_when_it_is_called_off() -> None:
    door, leave = Admission(ServerSection()), asyncio.Event()

    async def stay() -> None:
        async with door.through():
            await leave.wait()

    inside = asyncio.create_task(stay())
    await settled()
    assert not await door.emptied(0.02, lambda: False)
    assert not await door.emptied(60, lambda: True)
    leave.set()
    assert await door.emptied(60, lambda: False)
    await inside


ACTS = st.lists(
    st.tuples(st.sampled_from(["come", "leave", "cancel", "close", "open"]), st.integers(0, 20)), max_size=40
)


@given(ACTS)
def test_nobody_is_lost_and_nobody_inside_while_it_is_closed_came_later(acts: list[tuple[str, int]]) -> None:
    asyncio.run(_acted(acts))


async def _acted(acts: list[tuple[str, int]]) -> None:
    door = Admission(ServerSection(hold_s=60))
    inside: dict[int, asyncio.Event] = {}
    order: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def one(n: int) -> None:
        async with door.through():
            order.append(n)
            inside[n] = asyncio.Event()
            try:
                await inside[n].wait()
            finally:
                del inside[n]

    for act, n in acts:
        before = set(inside)
        if act == "come":
            tasks.append(asyncio.create_task(one(len(tasks))))
        elif act == "leave" and inside:
            list(inside.values())[n % len(inside)].set()
        elif act == "cancel" and tasks:
            tasks[n % len(tasks)].cancel()
        elif act == "close":
            door.close("It rests")
        elif act == "open":
            door.open()
        await settled()
        if door.closed:
            assert set(inside) <= before
        assert door.waiting + len(inside) == sum(not task.done() for task in tasks)
        assert await door.emptied(0, lambda: True) is (not inside)
    assert order == sorted(order)
    door.open()
    await settled()
    for event in list(inside.values()):
        event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await door.emptied(0, lambda: True) and not door.waiting


async def test_shut_for_a_moment_by_one_who_is_inside() -> None:
    """Those who wait hear nothing, and go in as it opens, whatever came of it."""
    door, went, beats = Admission(ServerSection()), asyncio.Event(), []

    async def beat() -> None:
        beats.append(1)

    async def come() -> None:
        async with door.through(beat):
            went.set()

    async with door.through():
        with contextlib.suppress(BackendDown), door.shut("It changes"):
            coming = asyncio.create_task(come())
            await asyncio.sleep(0.1)
            assert not went.is_set() and not beats and door.closed == "It changes"
            raise BackendDown("it did not change")
        await coming
    assert door.closed is None


async def test_whoever_closes_a_door_that_is_shut_keeps_it_closed() -> None:
    door = Admission(ServerSection())
    async with door.through():
        with door.shut("It changes"):
            door.close("It rests")
        assert door.closed == "It rests"
        with pytest.raises(BackendDown):
            async with door.through(wait=False):
                pytest.fail("it was let in")
