"""The time by which things expire: the clock on the wall, but no jump of it.

Owns the difference between a clock that was set and time that has passed. A clock set back, or forward, deletes nothing
early. What was captured before a jump forward has its own time first: only then is the new clock believed. Not here: a
clock that was wrong when rlproxy started, which nobody can tell; durations, which are all measured by a clock that
never jumps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger()

SLACK_S: Final = 60.0  # between two looks: a clock that is kept right by the network moves by less


def steady() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Calendar:
    """`hold_s`: how long a clock that has jumped forward is not believed. To be looked at at least once an hour."""

    def __init__(
        self, hold_s: float, wall: Callable[[], float] = lambda: time.time(), steady_clock: Callable[[], float] = steady
    ) -> None:
        self.hold_s = hold_s
        self._wall, self._steady = wall, steady_clock
        self._reference = (wall(), steady_clock())
        self._jump: tuple[float, float] | None = None  # when (steady), and how far ahead the clock is since then

    def now(self) -> float:
        """Unix seconds: those of the clock, or of before it jumped forward plus the time that has passed since."""
        wall, steady_now = self._wall(), self._steady()
        expected_now = self._reference[0] + steady_now - self._reference[1]
        ahead = wall - expected_now
        if ahead <= SLACK_S:
            self._reference, self._jump = (wall, steady_now), None
            return wall
        if self._jump is None or abs(ahead - self._jump[1]) > SLACK_S:
            self._jump = (steady_now, ahead)
            log.warning("the clock has jumped forward; nothing expires by it yet", seconds=round(ahead))
        if steady_now - self._jump[0] < self.hold_s:
            return expected_now
        self._reference, self._jump = (wall, steady_now), None
        return wall
