"""Memory that large requests leave free goes back to the system.

A request of a megabyte is parsed into thousands of small pieces. The C library keeps the room between what stays of
them, for rlproxy alone. On the machine that has to hold the model as well, it is missing. Owns when it is asked to give
that back. Not here: how large a request may be (limits), what is kept of it (active_conversations, history_cache).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import psutil

from proxy.core.tasks import Tasks

ENOUGH: Final = 1 << 20  # bytes of requests
AFTER_S = 5.0  # so that a busy time pays once for all of its requests: others wait while it happens
heap_trim: Callable[[], Any] | None = getattr(psutil, "heap_trim", None)  # not with every C library (musl)


class Memory:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._used = 0
        self._under_way = False

    def used(self, size: int) -> None:
        """A request of so many bytes has ended, answered or refused."""
        self._used += size
        if self._used >= ENOUGH and not self._under_way and heap_trim is not None:
            self._under_way = True
            self._tasks.spawn("give-memory-back", self._give_back(heap_trim))

    async def _give_back(self, trim: Callable[[], Any]) -> None:
        await asyncio.sleep(AFTER_S)
        self._used, self._under_way = 0, False
        await asyncio.to_thread(trim)
