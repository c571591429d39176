"""Background tasks with names, kept until they end.

Owns: no task is lost to the garbage collector, none fails in silence, all end at the stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger()


class Tasks:
    """The tasks of one app. `spawn` instead of a bare `asyncio.create_task`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", task=task.get_name(), error=repr(error), exc_info=error)

    @property
    def names(self) -> list[str]:
        return sorted(task.get_name() for task in self._tasks)

    async def drain_named(self, prefix: str, seconds: float) -> None:
        """Wait for these tasks to end by themselves, at most this long."""
        if waited := {task for task in self._tasks if task.get_name().startswith(prefix)}:
            await asyncio.wait(waited, timeout=seconds)

    async def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
