"""How the CPU time of a scan grows with its input: by its length, or by the square of it.

Two lengths are compared that lie so far apart that neither a cache nor a busy machine makes one look like the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

LONGER: Final = 16  # times
MOST: Final = 64  # times the CPU time: with the length it is 16, with the square of it 256
LEAST_S: Final = 0.003  # of a measurement, for its clock to be worth something
TRIES: Final = 4  # others use these cores, too


def cpu_s(scan: Callable[[Any], object], given: Any, repeats: int = 1) -> float:
    """CPU seconds of this thread, the least of `repeats` times."""
    found: list[float] = []
    for _ in range(repeats):
        began = time.thread_time()
        scan(given)
        found.append(time.thread_time() - began)
    return min(found)


def too_slow(scan: Callable[[Any], object], make: Callable[[int], Any], first: int, last: int) -> list[float]:
    """Times the CPU time for an input 16 times as long, once for each try; empty where the length explains it.

    `make` gives an input of about so many characters. The shorter one has `first` to `last` of them.
    """
    size = first
    while (short := cpu_s(scan, make(size))) < LEAST_S and 2 * size <= last:
        size *= 2
    given, long = make(size), make(LONGER * size)
    found: list[float] = []
    while len(found) < TRIES:
        found.append(round(cpu_s(scan, long) / max(short, LEAST_S), 1))
        if found[-1] <= MOST:
            return []
        short = cpu_s(scan, given, len(found))
    return found
