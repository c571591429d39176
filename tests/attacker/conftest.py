"""What measurements of time need: a backend that is never in the way, and no garbage collection."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from scripts.fakes.backend import FakeBackend


@pytest.fixture
def backend_with_own_loop() -> Iterator[FakeBackend]:
    """As a server has: what stalls the loop of the proxy does not stall this one."""
    fake, loop = FakeBackend(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(fake.start(), loop).result()
    yield fake
    asyncio.run_coroutine_threadsafe(fake.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """It looks through all that there is, now and then."""
    gc.disable()
    yield
    gc.enable()
