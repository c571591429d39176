"""A run stands still while requests are answered, and goes on in between.

Priorities alone do not do it: they do not reach a server in another control group, nor a GPU. A server whose threads
wait for each other loses all of them with the one that loses its core. Owns for how long: at most `train.stand_still_s`
at a stretch, then a turn of the same length for the run. So the run has half of the time, however many requests there
are. Not here: how a process is stopped, and woken where we are killed (trainer.low_priority).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from config.sections import BackendSection
from proxy.core.server_url import is_loopback

RECHECK_S: Final = 1.0  # for a run that has just started, meanwhile


class BackgroundThrottle:
    """`pause` stops the background work, or lets it go on; `most_s` 0: it is never stopped."""

    def __init__(
        self, pause: Callable[[bool], None], most_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell, self._most_s, self._clock = pause, most_s, clock
        self._answered = 0  # requests under way
        self._remaining_s = most_s  # seconds that the run may still be kept from its work
        self._its_turn = False  # nothing is left: it works until it has caught up
        self._is_paused = False
        self._interrupts: list[Callable[[], object]] = []  # called as soon as somebody asks
        self._settled_at = clock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_answering(self) -> bool:
        return self._answered > 0

    @contextlib.contextmanager
    def interrupting(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Call `interrupt`, inside this block, at each request that ends a silence."""
        self._interrupts.append(interrupt)
        try:
            yield
        finally:
            self._interrupts.remove(interrupt)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """One more request is answered, until `leave`."""
        self._answered += 1
        if self._answered == 1:
            for interrupt in self._interrupts:
                interrupt()
            if self._most_s:
                self._settle()

    def leave(self) -> None:
        self._answered -= 1
        if not self._answered and self._most_s:
            self._settle()

    def _look(self) -> None:
        self._timer = None
        self._settle()

    def _settle(self) -> None:
        """The state from now on, and when that has to be looked at again. A timer that was set before is due no later
        than a new one would be: what is left grows no faster than time passes."""
        now = self._clock()
        passed, self._settled_at = now - self._settled_at, now
        self._remaining_s = min(self._most_s, self._remaining_s + (-passed if self._is_paused else passed))
        if self._remaining_s <= 0:
            self._its_turn = True
        elif self._remaining_s >= self._most_s:
            self._its_turn = False
        self._is_paused, was_paused = bool(self._answered) and not self._its_turn, self._is_paused
        if self._is_paused or was_paused:
            self._tell(self._is_paused)
        if self._answered and self._timer is None:
            delay_s = min(self._remaining_s, RECHECK_S) if self._is_paused else self._most_s - self._remaining_s
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)


def longest(backend: BackendSection, seconds: float) -> float:
    """For which a run stands still: not at all beside a server that is on another machine."""
    urls = [url for url in (backend.url, *backend.replicas) if url]
    return seconds if not urls or any(_is_here(url) for url in urls) else 0.0


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")
