"""File descriptors: as many as the system lets us have, and what is said when there are none left.

Each answer under way holds two. Owns the limit, and the word on it. What
goes on without new ones: answers that have begun, the store. Who comes then waits to be let in, or is told.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import time
from collections.abc import Collection
from typing import Any, Final

import structlog
from aiohttp import web

from proxy.core.errors import OutOfFiles

log = structlog.get_logger()

MAX_DESCRIPTORS: Final = 65_536
SAID_S: Final = 10.0  # how long it is said after the last time; while there are none it happens every second
EACH: Final = 2  # of an answer under way: its client's and its backend's
RESERVED: Final = 192  # for the store, logs, children, event streams and those who come
SWEEP_S: Final = 0.5
SHORT: Final = (errno.EMFILE, errno.ENFILE)


def raise_limit() -> None:
    """Raise it as far as is allowed: 1024, what a shell gives, is 500 answers at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < goal:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))


def answers_at_once() -> int:
    """How many answers the descriptors are enough for, beside those that everything else needs."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(1, (most - RESERVED) // EACH)


async def keep_some_free(server: web.Server, busy: Collection[object], most: int) -> None:
    """Close connections that ask nothing, the oldest first, while clients have more than `most`, or half of
    all descriptors. Else those who only connect keep everybody out, and what they send fills the memory before anybody
    looks at it. `busy`: connections with a request under way."""
    while True:
        limit = min(most, EACH * answers_at_once() // 2)
        if (spare := len(server.connections) - limit) > 0:
            idle = [connection for connection in server.connections if connection not in busy]
            for connection in idle[: spare + limit // 4]:
                connection.force_close()
        await asyncio.sleep(SWEEP_S)


class Files:
    def __init__(self) -> None:
        self._last = -SAID_S

    @property
    def problem(self) -> str | None:
        """For `status`."""
        return _message() if time.monotonic() - self._last < SAID_S else None

    def check(self, error: BaseException) -> None:
        """Raises OutOfFiles where that is what the error comes from."""
        if getattr(error, "errno", None) in SHORT or getattr(getattr(error, "os_error", None), "errno", None) in SHORT:
            self._note()
            raise OutOfFiles(_message(), retry_after=2) from error

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's word on what nobody awaits: a connection that could not be taken. The loop tries again."""
        if getattr(context.get("exception"), "errno", None) in SHORT:
            self._note()
        else:
            loop.default_exception_handler(context)

    def _note(self) -> None:
        if self.problem is None:
            log.error("out of file descriptors", why=_message())
        self._last = time.monotonic()


def _message() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"All {limit} file descriptors are in use: answers that have begun go on, new ones have to wait. "
        "Ask again in a moment, or start rlproxy with a higher `ulimit -n`."
    )
