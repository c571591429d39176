"""Events: in order, each once, and resumed where a listener left off as far as the ring reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import events
from proxy.core.events import Events, ServerEvent


async def heard(listener: AsyncGenerator[ServerEvent, None], count: int) -> list[int]:
    return [(await anext(listener)).id for _ in range(count)]


@given(before=st.integers(0, 9), after=st.none() | st.integers(0, 12), more=st.integers(0, 9))
async def test_a_listener_hears_what_is_left_and_what_comes(before: int, after: int | None, more: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "RING_SIZE", 4)
        told = Events()
    for n in range(before):
        told.emit("rating", n=n)
    listener = told.listen(after)
    seen = before if after is None else after if after <= before else 0
    if seen < before:
        expected = list(range(max(seen, before - 4) + 1, before + 1))
        assert await heard(listener, len(expected)) == expected
    coming = asyncio.ensure_future(heard(listener, min(more, 4)))
    await asyncio.sleep(0)
    for n in range(more):
        told.emit("rating", n=n)
        await asyncio.sleep(0)
    assert await coming == list(range(before + 1, before + 1 + min(more, 4)))
    await listener.aclose()


async def test_all_listeners_are_told_the_end_after_what_came_before_it() -> None:
    told = Events()
    waiting, late = told.listen(), told.listen(0)
    first = asyncio.ensure_future(anext(waiting))
    await asyncio.sleep(0)
    told.emit("paused")
    told.end()
    assert (await first).kind == "paused"
    assert [one.kind async for one in late] == ["paused"] and [one async for one in waiting] == []
    assert [one.kind async for one in told.listen(0)] == ["paused"], "nor does anybody wait who comes later"
