"""Knows whether the database file is sound, and checks it after a stop that was not clean.

Owns the check, which runs beside the serving, and the note that lies beside a file that was found damaged. Until the
check has passed the file stays as the kill left it. What is written meanwhile stays in its log (writer), and nothing is
deleted or trained because of what stands in it (proxy). After damage was found nothing is written any more. Not here: a
check of a backup (backup), of a file that is converted (conversion).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from store.errors import StoreDamaged
from store.file import driver
from store.file.db_key import Secret

State = Literal["sound", "checking", "damaged"]

NOTE: Final = ".damaged"  # the ending of the note's name
SMALL: Final = 32 * 2**20  # bytes: of such a file
FIRST_S: Final = 0.25  # a start waits so long for the verdict, and mostly has it then
RETRY_S: Final = 60.0  # before the next try of a check that could not be made
NICE: Final = 19
CHECKING: Final = "the database is being checked, because the last stop was not a clean one"


class Integrity:
    """Told and asked by any thread."""

    def __init__(self, path: Path) -> None:
        """Sound, until a check begins or somebody met damage."""
        self._path = path
        self._lock = threading.Lock()
        self._check_ended = threading.Event()  # cleared while a check is under way
        self._check_ended.set()
        self._stopping = threading.Event()
        self._db: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._changed: Callable[[], None] = lambda: None
        self.state: State = "sound"
        self.reason: str | None = None  # it is damaged, or could not be checked yet
        self.since: float | None = None  # when the check began

    @property
    def refusal(self) -> StoreDamaged | None:
        """The error of whatever would write."""
        return StoreDamaged(damaged(self._path, self.reason)) if self.state == "damaged" else None

    @property
    def doubt(self) -> str | None:
        """A sentence without its full stop: why nothing may be deleted or trained now. None where it may."""
        if self.state == "sound":
            return None
        if self.state == "checking":
            return CHECKING if self.reason is None else f"{CHECKING}; {self.reason}"
        return damaged(self._path, self.reason).removesuffix(".")

    def listen(self, changed: Callable[[], None]) -> None:
        """Have `changed` called now and at each change of the state, in whatever thread that happens."""
        self._changed = changed
        changed()

    def note_damage(self, error: BaseException) -> StoreDamaged | None:
        """Take note where SQLite's error tells of damage; then this is what to raise."""
        if not driver.tells_of_damage(error):
            return None
        self._damaged(str(error))
        return self.refusal

    def begin(self, secret: Secret | None) -> None:
        """Check the file in a thread of its own. Raises what connecting raises."""
        self.state, self.since = "checking", time.time()
        self._check_ended.clear()
        # Kept open until the end: the last connection to close must not be one that may write the log into the file.
        self._db = driver.connect(self._path, secret, read_only=True)
        driver.hold(self._db)
        self._thread = threading.Thread(target=self._check, name="store-check", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None) -> None:
        """For the verdict, at most so long."""
        self._check_ended.wait(seconds)

    def close(self) -> None:
        """End a check that is under way; the next start begins it anew. Not called by two threads at once."""
        self._stopping.set()
        while self._thread is not None and self._thread.is_alive():
            if self._db is not None:
                self._db.interrupt()  # again and again: one that comes before the statement begins is lost
            self._thread.join(0.01)
        if self._db is not None:
            self._db.close()
            self._db = None

    def _check(self) -> None:
        _stand_back()
        while (verdict := self._verdict()) is None:
            if self._stopping.wait(RETRY_S):
                return
        if verdict != "ok":
            self._damaged(verdict)
            return
        with self._lock:
            if self.state != "checking":
                return  # somebody has met damage meanwhile
            with contextlib.suppress(OSError):
                note_of(self._path).unlink(missing_ok=True)
            self.state, self.reason = "sound", None
        self._check_ended.set()
        self._changed()

    def _verdict(self) -> str | None:
        """None where there is none: it was interrupted, or something else than the file was in the way."""
        assert self._db is not None
        try:
            return quick(self._db)
        except driver.errors() as error:
            if driver.tells_of_damage(error):
                return str(error)
            with self._lock:
                if self.state == "checking":
                    self.reason = f"it is tried again, as it could not be read ({error})"
            return None

    def _damaged(self, reason: str) -> None:
        with self._lock:
            if self.state == "damaged":
                return
            self.state, self.reason = "damaged", reason
        write_note(self._path, reason)
        self._check_ended.set()
        self._changed()


def quick(db: sqlite3.Connection) -> str:
    """SQLite's word on the structure of all pages: "ok", or the first thing that is wrong."""
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return str(verdict)


def check(db: sqlite3.Connection, path: Path) -> None:
    """At once. Raises StoreDamaged, and leaves the note."""
    if (verdict := quick(db)) != "ok":
        write_note(path, verdict)
        raise StoreDamaged(damaged(path, verdict))


def damaged(path: Path, reason: str | None) -> str:
    reason_text = " ".join(str(reason).split()).rstrip(".")
    return f"{path} is damaged ({reason_text}); restore a backup or move it away to start empty."


def note_of(path: Path) -> Path:
    return path.with_name(path.name + NOTE)


def noted(path: Path) -> str | None:
    """When damage was found in this file, and what; None where none is known."""
    try:
        return note_of(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def write_note(path: Path, reason: str) -> None:
    """The next start checks this file before it does anything else. Without space for the note it finds out again."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(reason.split())}\n"
    with (
        contextlib.suppress(OSError),
        os.fdopen(os.open(note_of(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file,
    ):
        file.write(line)


def _stand_back() -> None:
    """Let everything else of this process go first. Only Linux has a priority for each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
