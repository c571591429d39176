"""Limits of a child process: open files, the size of a file, memory; and no core dump.

Owns the bounds and how they are put on. This file is also a program, started in the child's place. It sets them on
itself and then becomes the child (exec keeps them, and the process). So they hold before its first line, and nothing it
does can raise them. No code runs between fork and exec in a process with threads. A core would hold people's texts.
Memory is the one that the kernel does not bound well. Address space (RLIMIT_AS) is many times what torch uses, and
RLIMIT_DATA counts weights that are only mapped. So it is measured from outside, `in_use`, and who is over it is killed
(launch). Not here: being nice (low_priority), the environment (launch); free memory of the machine (container).

    python -I -S limits.py FILES FILE_BYTES COMMAND…      (0: as many as it finds)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

GB = 2**30


@dataclass(frozen=True)
class ProcessLimits:
    """0 means no limit."""

    files: int = 4096  # open at once; a run needs about a hundred
    file_bytes: int = 64 * GB  # of one file: the largest part of large weights, which a run may have to download
    memory_bytes: int = 0  # in use, of the process and its children


def default_threads() -> tuple[int, int]:
    """(server, trainer): together no more than the cores we may use, or the two spin against each other."""
    from trainer import container  # not needed by the program that this file also is

    cores = container.processors()
    trainer = max(1, cores // 2)
    return max(1, cores - trainer), trainer


def limited(limits: ProcessLimits, command: Sequence[str]) -> list[str]:
    """The command that runs this one within these limits."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(limits.files), str(limits.file_bytes), *command]


def in_use(pid: int) -> int:
    """Bytes of memory that come free with this process and its children; files that are only mapped do not count."""
    import psutil  # nor this

    try:
        root = psutil.Process(pid)
        return sum(_own_memory(process) for process in (root, *root.children(recursive=True)))
    except psutil.Error:  # gone
        return 0


def _own_memory(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss) - int(getattr(memory, "shared", 0))  # of files, on Linux


def _lower(resource_kind: int, limit: int) -> None:
    import resource

    _, hard = resource.getrlimit(resource_kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource_kind, (limit, limit))


def main(files: str, file_bytes: str, *command: str) -> None:
    import resource

    _lower(resource.RLIMIT_CORE, 0)
    if int(files):
        _lower(resource.RLIMIT_NOFILE, int(files))
    if int(file_bytes):
        _lower(resource.RLIMIT_FSIZE, int(file_bytes))
    os.execv(command[0], command)  # noqa: S606  a list that launch has built


if __name__ == "__main__":
    main(*sys.argv[1:])
