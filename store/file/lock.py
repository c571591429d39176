"""One process owns a home folder: an flock, let go by the kernel however the process ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from store.errors import StoreBusy

NAME = "rlproxy.lock"
LOOK_S = 0.05  # much longer than `held` has it


class Lock:
    def __init__(self, home: Path) -> None:
        """Take the lock or raise StoreBusy with the owner's pid."""
        self._file = os.open(home / NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take()
        except BlockingIOError:
            owner = os.read(self._file, 32).strip()
            os.close(self._file)
            raise StoreBusy(str(home), int(owner) if owner.isdigit() else None) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, b"%d\n" % os.getpid())

    def _take(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # it may only have been looked at
            time.sleep(LOOK_S)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        # The file stays: removing it would let two processes hold locks on two files of one name.
        os.close(self._file)


def is_held(home: Path) -> bool:
    """Tell whether a process owns this home now; no file is made or changed."""
    try:
        file = os.open(home / NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
