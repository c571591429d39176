"""Background tasks with names, kept until they end.

Owns: no task is lost to the garbage collector, none fails in silence, and all end at the stop. What was to begin later
begins before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import structlog
from aiohttp import web

log = structlog.get_logger()

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]


class Tasks:
    """The tasks of one app. `spawn` instead of a bare `asyncio.create_task`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.delayed: set[DelayedTask] = set()  # what has not begun

    def hurry(self) -> None:
        """All that was to begin later begins now."""
        for task in list(self.delayed):
            task.begin()

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


class DelayedTask:
    """Work that begins so long from now, unless it is taken back before."""

    def __init__(self, tasks: Tasks, seconds: float, name: str, work: Work) -> None:
        self.task: asyncio.Task[Any] | None = None  # once it has begun
        self._tasks, self._name = tasks, name
        self._work: Work | None = work  # until then: who waits for it is in it, and no cycle must outlive a request
        self._due = asyncio.get_running_loop().call_later(seconds, self.begin)
        tasks.delayed.add(self)

    def begin(self) -> None:
        work = self._work
        if self.take_back() and work is not None:
            self.task = self._tasks.spawn(self._name, work())

    def take_back(self) -> bool:
        """Tell whether it had not begun; now it never does."""
        waited = self._work is not None
        self._work = None
        self._due.cancel()
        self._tasks.delayed.discard(self)
        return waited


class SharedCall(Generic[T]):
    """Work that is done once for all who ask while it is under way. It ends where nobody waits for it any more."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def result(self) -> T:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="shared")
        task = self._task
        self._waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                task.cancel()
                self._task = None


TASKS: Final = web.AppKey("tasks", Tasks)
