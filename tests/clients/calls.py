"""One call, whichever of an SDK's two clients makes it: the tests are written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from scripts.harness.in_process import Proxy

clients = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ways = pytest.mark.parametrize("way", ["native", "translated"])


async def made(sync: bool, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """The answer; a sync client waits in a thread, as in any program."""
    if sync:
        return await asyncio.to_thread(call, *args, **more)
    found = call(*args, **more)
    return await found if inspect.isawaitable(found) else found


async def pieces(sync: bool, call: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
    """What a stream yields, to its end."""
    if sync:
        return await asyncio.to_thread(lambda: list(call(*args, **more)))
    return [piece async for piece in await made(False, call, *args, **more)]


async def final(sync: bool, call: Callable[..., Any], getter: str, **more: Any) -> Any:
    """What an SDK's own stream helper makes of the events in the end."""
    if sync:

        def run() -> Any:
            with call(**more) as stream:
                return getattr(stream, getter)()

        return await asyncio.to_thread(run)
    async with call(**more) as stream:
        return await getattr(stream, getter)()


async def captured(proxy: Proxy, id: str, *, way: str, dialect: str) -> None:
    """It is stored whole, under the id that the client knows, and travelled as it should have."""
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None and found.end.status == "done"
    assert (found.end.translated, found.new.dialect) == (way == "translated", dialect)
