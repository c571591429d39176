"""How busy the machine is, without us: CPU, memory and GPU that other programs use.

Owns the measurement: our own process tree (proxy, built-in backend, trainer) does not keep runs from starting. Not
here: what is too busy (schedule_rules).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import deque
from typing import Final, NamedTuple

import psutil
import structlog

from trainer.launch import machine_memory

log = structlog.get_logger()

WINDOW_S: Final = 60.0  # the CPU's use is a mean over so long
LEAST_S: Final = 4.0  # and is not known before so long
GPU_S: Final = 10.0  # for nvidia-smi to answer
GB: Final = 2**30
MIB: Final = 2**20
BUSY: Final = ("user", "nice", "system", "irq", "softirq")


class MachineUse(NamedTuple):
    free_gb: float  # memory that is free, or would be without the trainer
    cpu_percent: float | None = None  # None: not measured, or not long enough
    gpu_percent: float | None = None  # None: not measured, no GPU, or one that we compute on ourselves
    gpu_free_gb: float | None = None
    problem: str | None = None  # why something could not be measured


class CpuTime(NamedTuple):
    """CPU seconds up to a moment."""

    timestamp: float
    busy: float  # of the whole machine
    ours: float


class Machine:
    """`cpu`, `gpu`: whether there is a limit for it; what has none is not measured."""

    def __init__(self, *, cpu: bool, gpu: bool) -> None:
        self._cpu = cpu
        self._smi = shutil.which("nvidia-smi") if gpu else None
        self._one_at_a_time = threading.Lock()  # `status` asks too
        self._spent: deque[CpuTime] = deque()
        self._cpu_seconds: dict[tuple[int, float], float] = {}  # our processes, and their CPU seconds when last seen
        if gpu and self._smi is None:
            log.warning("there is no nvidia-smi: the limits of GPU use and memory have no effect")

    def look(self, now: float, trainer: int | None = None) -> MachineUse:
        """Blocking. `now` is of a clock that never goes back, `trainer` the process of a run under way."""
        tree = _tree(os.getpid()) if self._cpu or self._smi else []
        cpu = None
        if self._cpu:
            with self._one_at_a_time:
                cpu = self._cpu_percent(now, tree)
        runs = _tree(trainer) if trainer is not None else []
        free = (machine_memory().free + sum(_memory(process) for process in runs)) / GB
        if self._smi is None:
            return MachineUse(free, cpu)
        try:
            gpu, gpu_free = self._gpu({p.pid for p in tree}, {p.pid for p in runs})
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return MachineUse(free, cpu, problem=f"nvidia-smi does not say how busy the GPU is ({error})")
        return MachineUse(free, cpu, gpu, gpu_free)

    def _cpu_percent(self, now: float, tree: list[psutil.Process]) -> float | None:
        ours = self._spent[-1].ours if self._spent else 0.0
        cpu_seconds: dict[tuple[int, float], float] = {}
        for process in tree:
            if (spent := _seconds(process)) is not None:
                key = (process.pid, process.create_time())
                cpu_seconds[key] = spent
                ours += max(0.0, spent - self._cpu_seconds.get(key, 0.0))
        self._cpu_seconds = cpu_seconds
        times = psutil.cpu_times()
        self._spent.append(CpuTime(now, sum(getattr(times, name, 0.0) for name in BUSY), ours))
        return other_cpu_use(self._spent, psutil.cpu_count() or 1)

    def _gpu(self, ours: set[int], trainer: set[int]) -> tuple[float | None, float]:
        assert self._smi is not None
        gpu_index = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
        gpu = _ask(self._smi, gpu_index, "--query-gpu=utilization.gpu,memory.free")
        apps = _ask(self._smi, gpu_index, "--query-compute-apps=pid,used_memory")
        return gpu_use(gpu, apps, ours, trainer)


class CoreShare:
    """How much of one core a process and its children get, over the last `WINDOW_S`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._spent: deque[tuple[float, float]] = deque()  # moments, and CPU seconds up to them

    def look(self, now: float) -> float | None:
        """Blocking. None before `LEAST_S`, or where the process is gone."""
        seconds = [spent for process in _tree(self._pid) if (spent := _seconds(process)) is not None]
        if not seconds:
            return None
        self._spent.append((now, sum(seconds)))
        while len(self._spent) > 2 and now - self._spent[1][0] >= WINDOW_S:
            self._spent.popleft()
        start, spent = self._spent[0]
        return (sum(seconds) - spent) / (now - start) if now - start >= LEAST_S else None


def other_cpu_use(spent: deque[CpuTime], cpus: int) -> float | None:
    """CPU use of other programs over the last `WINDOW_S`, in percent of the whole machine. Forgets what is older."""
    while len(spent) > 2 and spent[-1].timestamp - spent[1].timestamp >= WINDOW_S:
        spent.popleft()
    first, last = spent[0], spent[-1]
    if last.timestamp - first.timestamp < LEAST_S:
        return None
    used = (last.busy - first.busy) - (last.ours - first.ours)
    return max(0.0, min(100.0, 100 * used / ((last.timestamp - first.timestamp) * cpus)))


def gpu_use(gpu: str, apps: str, ours: set[int], trainer: set[int]) -> tuple[float | None, float]:
    """(percent, GB free) from what nvidia-smi prints. Raises ValueError.

    It tells the use of a GPU, not whose it is: where we compute ourselves, the percentage says nothing. Memory that
    the trainer holds counts as free.
    """
    busy, free = (field.strip() for field in gpu.strip().splitlines()[0].split(","))
    rows = [[field.strip() for field in line.split(",")] for line in apps.strip().splitlines()]
    trainer_memory = sum(float(used) for pid, used in rows if int(pid) in trainer and used.replace(".", "").isdecimal())
    is_ours = any(int(pid) in ours for pid, _ in rows)
    return (None if is_ours else float(busy)), (float(free) + trainer_memory) * MIB / GB


def _ask(smi: str, gpu_index: str, query: str) -> str:
    command = [smi, f"--id={gpu_index}", query, "--format=csv,noheader,nounits"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=GPU_S, check=True)
    if not process.stdout.strip() and query.startswith("--query-gpu"):
        raise ValueError("it printed nothing")
    return process.stdout


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _seconds(process: psutil.Process) -> float | None:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
