"""User-defined signals: `score(completion, next)` of a person's own Python file, in a child process.

Owns the child. It gets no secret in its environment or its arguments, one turn at a time, and so much memory and time.
One that takes longer is killed and started anew. What it returns is a number in [-1, 1], `{"reward", "comment"}`, or
None. Its file is known by its hash: another file is another judge, and what the earlier one rated is taken back. It
runs as the same user of the machine, so it can read files. Not here: which turns it sees (judging).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from config.sections import Signals

RUNNER: Final = Path(__file__).with_name("own_runner.py")
WEIGHT: Final = 0.5  # of its ratings, where a person's weighs 1
MOST_BYTES: Final = 1 << 20  # of one answer
MOST_COMMENT: Final = 2000
MB: Final = 2**20


class OwnFailed(Exception):
    """The module cannot be used, or not for this turn; says why."""


class Score(NamedTuple):
    value: float
    comment: str


class Own:
    """The module of the settings. One call at a time."""

    def __init__(self, settings: Signals) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._running = ""  # the hash of what runs
        self._lock = asyncio.Lock()

    @property
    def on(self) -> bool:
        return self._settings.module is not None

    def hash(self) -> str:
        """Hash of the file as it is now. Raises OwnFailed."""
        assert self._settings.module is not None
        try:
            return hashlib.sha256(self._settings.module.read_bytes()).hexdigest()
        except OSError as error:
            raise OwnFailed(f"{self._settings.module} cannot be read: {error.strerror}") from error

    async def score(self, completion: dict[str, Any], following: dict[str, Any]) -> Score | None:
        """Raises OwnFailed: this turn has no score, and the next one may."""
        async with self._lock:
            line = json.dumps({"completion": completion, "next": following}).encode() + b"\n"
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    process = await self._started()
                    assert process.stdin is not None and process.stdout is not None
                    process.stdin.write(line)
                    await process.stdin.drain()
                    answer = await process.stdout.readline()
            except TimeoutError:
                await self._end()
                raise OwnFailed(f"it took more than {self._settings.timeout_s:g} s (signals.timeout_s)") from None
            except (OSError, ValueError) as error:  # it died, or its answer is longer than MOST_BYTES
                await self._end()
                raise OwnFailed(f"it did not answer ({error})") from error
            except asyncio.CancelledError:
                await self._end()  # its answer would be taken for the next turn's
                raise
            if not answer.endswith(b"\n"):
                await self._end()
                raise OwnFailed("it ended; signals.memory_mb may be too little, and its stderr says more")
        return _read(answer)

    async def _started(self) -> asyncio.subprocess.Process:
        hash = await asyncio.to_thread(self.hash)
        if self._process is not None and self._process.returncode is None and self._running == hash:
            return self._process
        await self._end()
        command = [sys.executable, "-I", str(RUNNER), str(self._settings.module), str(self._settings.memory_mb * MB)]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            cwd=tempfile.gettempdir(),
            limit=MOST_BYTES,
            start_new_session=True,
        )
        self._running = hash
        return self._process

    async def stop(self) -> None:
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()


def _read(answer: bytes) -> Score | None:
    """Raises OwnFailed for what is neither a score nor None."""
    try:
        found = json.loads(answer)
    except ValueError:
        raise OwnFailed("its answer is not JSON") from None
    if not isinstance(found, dict):
        raise OwnFailed("its answer is not an object")
    if "error" in found:
        raise OwnFailed(str(found["error"])[:200])
    value: Any = found.get("value")
    comment: Any = ""
    if value is None:
        return None
    if isinstance(value, dict):
        value, comment = value.get("reward"), value.get("comment") or ""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1:
        raise OwnFailed("it returned neither a number from -1 to 1, nor {reward, comment}, nor None")
    if not isinstance(comment, str):
        raise OwnFailed("its comment is not text")
    return Score(float(value), comment[:MOST_COMMENT])
