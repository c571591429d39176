"""Turns in which to look again, until what a test waits for is there.

Owns how long that is: far longer than it takes on any machine, so that only what never comes fails.
"""

from __future__ import annotations

import asyncio
import time

ENOUGH_S = 120.0
PAUSE_S = 0.02


class Polls:
    """Turns of a loop that waits for a condition: `async for _ in Polls()`, left by `break` or `return`. They end after
    ENOUGH_S."""

    def __init__(self) -> None:
        self._end = time.monotonic() + ENOUGH_S
        self._pause_s = 0.0

    def __aiter__(self) -> Polls:
        return self

    async def __anext__(self) -> None:
        if time.monotonic() > self._end:
            raise StopAsyncIteration
        await asyncio.sleep(self._pause_s)
        self._pause_s = PAUSE_S
