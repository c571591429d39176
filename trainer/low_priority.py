"""Background work stands behind everything else on the machine.

Owns how a child is put there, and what of it the machine has. This file is also a program, started in the child's
place. It steps back and then becomes the child, so that all its threads and children inherit it. `nice` alone is not
enough. On Linux it counts within one scheduling group. Each session is a group of its own (autogroup), as is each
control group with the cpu controller. On a Mac background priority also slows disk and network. Where none of this
reaches the model's server, standing still does: a run is stopped while requests are answered. A stopped process cannot
see that its parent has gone, so the kernel is asked to wake it then. Not here: limits (limits); when a run stands still
(the proxy's giving_way).

    python -I -S background.py NICE COMMAND…      (0: steps back from nobody)
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LOWEST = 19
FIRST_TO_GO = "800"  # where memory runs out, the kernel ends a run, which goes on later, and not who answers
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
AUTOGROUP_S, AUTOGROUP_TRIES = 0.1, 50  # the kernel takes one change in a tenth of a second, of all processes together
CONTROL_GROUPS = Path("/sys/fs/cgroup")
SCOPE = ("--user", "--scope", "--quiet", "--collect")
WEIGHT = 10  # of a scope; every other program has 100. An idle one would never end on a machine that is busy
SYSTEMD_S = 10.0
PR_SET_PDEATHSIG = 1
DARWIN_PROCESS, DARWIN_BACKGROUND = 4, 0x1000  # PRIO_DARWIN_PROCESS and PRIO_DARWIN_BG of <sys/resource.h>


def at_low_priority(nice: int, command: Sequence[str], scope: Sequence[str] = ()) -> list[str]:
    """The command that runs this one in the background; `scope` as `scope()` finds it."""
    program = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(nice)]
    return [*(scope if nice else ()), *program, *command]


@functools.cache
def scope() -> tuple[str, ...]:
    """The prefix that starts a command in a control group of its own that has a tenth of what each other group has.

    Empty where control groups do not decide, or systemd does not do that for us. Blocking: systemd is asked once.
    """
    if sys.platform != "linux" or control_group("self") is None:  # else it would take our autogroup out of play
        return ()
    systemd_run = shutil.which("systemd-run")
    if systemd_run:
        command = (systemd_run, *SCOPE, f"--property=CPUWeight={WEIGHT}", "--")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*command, "true"], check=True, capture_output=True, timeout=SYSTEMD_S, stdin=subprocess.DEVNULL
            )
            return command
    return ()


def control_group(pid: int | str) -> str | None:
    """The control group by which the kernel shares the processor out to this process; None: it goes by autogroup."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    return _group_in(lines)


def _group_in(lines: Sequence[str]) -> str | None:
    """Read the lines of /proc/PID/cgroup: `number:controllers:path`, where number 0 is the unified hierarchy."""
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") and path != "/":
            return path
        if number == "0":
            place = Path(os.path.normpath(path))  # one outside of our namespace begins with `/..`
            for group in (place, *place.parents):
                if (CONTROL_GROUPS / group.relative_to("/") / "cpu.weight").exists():
                    return str(group)
    return None


class PriorityState(NamedTuple):
    how: tuple[str, ...]  # what is in force, in words
    weak: str | None = None  # from whom a run does not step back, in a sentence


def standing(nice: int, pid: int | str = "self") -> PriorityState:
    """How far the background work that this process starts steps back. Blocking."""
    if nice == 0:
        return PriorityState((), "train.nice = 0: a run takes as much of the processor as the model's server")
    if sys.platform == "darwin":
        return PriorityState(("background priority of macOS", f"nice {nice}"))
    how = [f"nice {nice}", *(["SCHED_IDLE"] if nice == LOWEST and hasattr(os, "SCHED_IDLE") else [])]
    if sys.platform != "linux":
        return PriorityState(tuple(how))
    if (group := control_group(pid)) is not None:
        if scope():
            return PriorityState((*how, f"a systemd scope with CPUWeight {WEIGHT}"))
        weak = f"this counts within the control group {group} only, not against a server outside it"
        return PriorityState(tuple(how), weak)
    if _autogroups():
        return PriorityState((*how, f"autogroup {nice}"))
    return PriorityState(tuple(how))


def can_stand_still() -> bool:
    """Where the kernel wakes a stopped child whose parent ends; without that a kill would leave it stopped."""
    return sys.platform == "linux"


def stand_still(pid: int, *, paused: bool) -> bool:
    """Stop this child process and all of its group, or let them go on. False: it is not yet, or no longer, that far."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a moment, while the kernel starts it
        if paused and (not command or os.fsencode(__file__) in command):
            return False  # it has not yet asked to be woken
        os.killpg(pid, signal.SIGSTOP if paused else signal.SIGCONT)
        return True
    return False


def _autogroups() -> bool:
    try:
        return AUTOGROUP.read_text().strip() == "1"
    except OSError:
        return False


def _step_back(nice: int) -> None:
    """Omit what this machine lacks or forbids: `standing` tells what remains."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):
            os.setpriority(DARWIN_PROCESS, 0, DARWIN_BACKGROUND)
    if nice == LOWEST and hasattr(os, "SCHED_IDLE"):  # whoever wakes up gets the core at once
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if not _autogroups():
        return
    for _ in range(AUTOGROUP_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(nice))
        except BlockingIOError:
            time.sleep(AUTOGROUP_S)
        except OSError:
            return
        else:
            return


def _wake_when_orphaned() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT))


def main(nice: str, *command: str) -> None:
    if int(nice):
        _step_back(int(nice))
    if sys.platform == "linux":
        _wake_when_orphaned()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    os.execv(command[0], command)  # noqa: S606  a list that launch has built


if __name__ == "__main__":
    main(*sys.argv[1:])
