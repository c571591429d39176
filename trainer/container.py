"""Memory and processors that are there for this process: the machine's, and no more than a container or service has.

Linux bounds a container by control groups, and neither the list of processors nor free memory tells of them. A run that
plans with the machine's memory is killed, and threads beyond its share of processors wait for each other. Owns the
bounds of this process's group and of those above it, in both versions of the kernel's interface. Elsewhere there is
none. Not here: a GPU's memory (torch_memory), what a run may use of this (limits).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

OWN_GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


class AvailableMemory(NamedTuple):
    total: int  # bytes
    free: int


def memory(own_groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> AvailableMemory:
    """Memory for this process, in bytes. Cached files count as free, as the kernel drops them when they are in the
    way."""
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for group in _groups("memory", own_groups, mount):
        # Above the high mark nobody is killed, but all are slowed down until they hardly go on.
        limits = [_number(group, "memory.max", "memory.limit_in_bytes"), _number(group, "memory.high")]
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is not None:
            used = _number(group, "memory.current", "memory.usage_in_bytes") or 0
            total = min(total, limit)
            free = min(free, limit, max(0, limit - used + _cached(group)))
    return AvailableMemory(total, free)


def processors(own_groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> int:
    """How many processors this process may keep busy; one at least."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu", own_groups, mount):
        if (share := _processor_share(group)) is not None:
            count = min(count, max(1, math.ceil(share)))
    return count


def _groups(controller: str, own_groups: Path, mount: Path) -> Iterator[Path]:
    """Folders of this process's group and of all above it, as far as they are seen from here.

    A container may be told its group's path on the machine, where that path is not there: its own is the mount then.
    """
    for line in _text(own_groups).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            roots = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            roots = [mount / controllers, mount / controller]
        else:
            continue
        group = Path(path.lstrip("/"))
        for root in roots:
            yield from (root / part for part in (group, *group.parents) if ".." not in part.parts)


def _processor_share(group: Path) -> float | None:
    """Processors that a group may keep busy; None: all."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        return None
    return int(quota) / int(period)


def _cached(group: Path) -> int:
    """Bytes of files that a group has in memory, and that the kernel can drop."""
    lines = (line.partition(" ") for line in _text(group / "memory.stat").splitlines())
    sizes = {name: int(size) for name, _, size in lines if size.isdecimal()}
    prefix = "total_" if "total_active_file" in sizes else ""
    return sizes.get(f"{prefix}active_file", 0) + sizes.get(f"{prefix}inactive_file", 0)


def _number(group: Path, *names: str) -> int | None:
    """Read the number in the first of these files that is there. None: no file, or no bound."""
    texts = (_text(group / name).strip() for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
