"""One process owns a home folder: an flock, let go by the kernel however the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from store.errors import StoreBusy

NAME = "rlproxy.lock"


class Lock:
    def __init__(self, home: Path) -> None:
        """Take the lock or raise StoreBusy with the owner's pid."""
        self._file = os.open(home / NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 32).strip()
            os.close(self._file)
            raise StoreBusy(str(home), int(owner) if owner.isdigit() else None) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, b"%d\n" % os.getpid())

    def release(self) -> None:
        # The file stays: removing it would let two processes hold locks on two files of one name.
        os.close(self._file)
