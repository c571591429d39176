"""How many threads to compute with: one for each core that nothing else needs.

Owns the look at the machine, and the threads of torch that follow it. Threads of one product wait for each other. On a
quiet machine two are up to twice as fast as one. Beside a program that keeps a core busy they are slower than one
(docs/lab/performance-log.md). Not here: a bound on them (settings: threads), the cores of a container (container), who
goes first (low_priority).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from trainer.container import processors

if TYPE_CHECKING:
    from torch.nn import Module

LOOK_S: Final = 1.0  # between two looks: the system counts in hundredths of a second
# Rounds that a thread spins before it sleeps, some tens of microseconds: shorter than most waits for another core's
# part of a product, and too short to take a core from others.
SPINS: Final = 5000


class CoreTimes(NamedTuple):
    """Seconds so far."""

    clock: float
    busy: float  # of all cores that this process may use, summed
    process: float  # of these, for this process


def read_core_times() -> CoreTimes:
    cores, numbers = psutil.cpu_times(percpu=True), _allowed_cores()
    if len(numbers) < len(cores) and max(numbers) < len(cores):  # else some are offline, and numbers are not places
        cores = [cores[number] for number in numbers]
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")  # stolen: another machine of the same host had it
    busy = sum(getattr(core, kind, 0.0) for core in cores for kind in kinds)
    return CoreTimes(time.monotonic(), busy, time.process_time())


def most_threads() -> int:
    """The cores of this process; two threads of one physical core are not faster than one.

    Of a container's share in processors, half: how much of it the container's other programs take is not seen.
    """
    if (share := processors()) < len(_allowed_cores()):
        return max(1, share // 2)
    return min(share, psutil.cpu_count(logical=False) or share)


def _allowed_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def fitting_threads(previous: CoreTimes, current: CoreTimes, *, cores: int, most: int) -> int:
    """Cores that others left idle between two looks, rounded; one at least."""
    load = (current.busy - previous.busy) - (current.process - previous.process)  # of others
    return max(1, min(most, round(cores - load / (current.clock - previous.clock))))


class IdleCores:
    """Begins with so many threads: half of the cores, as a server and a run may both be there."""

    def __init__(self, threads: int, read: Callable[[], CoreTimes]) -> None:
        self.threads = threads
        self._read = read
        self._times = read()
        self._cores = len(_allowed_cores())
        self._most = most_threads()

    def look(self) -> int:
        """The threads to use from now on."""
        if time.monotonic() - self._times.clock >= LOOK_S:
            previous, self._times = self._times, self._read()
            self.threads = fitting_threads(previous, self._times, cores=self._cores, most=self._most)
        return self.threads


def openmp_environment(threads: int) -> dict[str, str]:
    """Read by OpenMP when torch loads, and never again. A thread that spins for long while it waits takes
    the core that another process needs. One that sleeps at once comes too late for each of a model's small products."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": str(SPINS),  # goes before the policy; other libraries than GNU's know the policy alone
    }


def use_idle_cores(model: Module, read: Callable[[], CoreTimes] = read_core_times) -> None:
    """From here on each pass of the model has as many threads as there are idle cores."""
    import torch

    cores = IdleCores(torch.get_num_threads(), read)

    def set_threads(*_: object) -> None:
        torch.set_num_threads(cores.look())

    model.register_forward_pre_hook(set_threads)
