"""`rlproxy stop`: the process that serves a home is told to end, and waited for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from config.settings import Settings
from proxy.cli.doctor.facts import holder
from proxy.cli.failing import fail
from proxy.cli.http import NO_PROXY

STOP_S: Final = 90.0  # answers, what they leave to be stored, and the backend (proxy.server)
LOOK_S: Final = 0.1


def stop_proxy(settings: Settings, patience_s: float = STOP_S) -> int:
    """Returns the process that has ended. Ends the command where none holds the home, or where it goes on."""
    pid = holder(settings.home)
    if pid is None:
        fail(f"no rlproxy runs on {settings.home}.", NO_PROXY)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return pid
    except PermissionError:
        fail(f"process {pid} serves {settings.home}, and is another user's.")
    end = time.monotonic() + patience_s
    while _holds(settings.home, pid):
        if time.monotonic() > end:
            fail(f"process {pid} was told to end, and has not; `kill {pid}` ends it at once.")
        time.sleep(LOOK_S)
    return pid


def _holds(home: Path, pid: int) -> bool:
    return holder(home) == pid
