"""A function of the user's own Python file, called in a child process.

Owns the child. No secret is in its environment or its arguments. It answers one call at a time, and has so much memory
and time. One that takes longer is killed and started anew. The code that runs is the code that was hashed: the
child is sent what was read. It runs as the same user of the machine, so it can read files. Not here: what a function is
given (proxy.signals.own, proxy.feedback.reward_function), what it may return (reward).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

log = structlog.get_logger()

RUNNER: Final = Path(__file__).with_name("runner.py")
LARGEST_FILE: Final = 2**20  # bytes of code
MOST_BYTES: Final = 2**20  # of one answer
KEPT_WORDS: Final = 2000  # bytes of what it prints, the newest
MB: Final = 2**20


class OwnCodeFailed(Exception):
    """The code cannot be used, or not for this call; says why."""


class Source(NamedTuple):
    """A file as it was read."""

    code: bytes
    hash: str  # sha256, hexadecimal


def read(file: Path) -> Source:
    """The file as it is now. Raises OwnCodeFailed where it is not a plain file of a sane size."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would keep us waiting
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OwnCodeFailed(f"{file} is not a plain file")
            code = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise OwnCodeFailed(f"{file} cannot be read: {error.strerror}") from error
    if len(code) > LARGEST_FILE:
        raise OwnCodeFailed(f"{file} has more than {LARGEST_FILE // 2**20} MiB")
    return Source(code, hashlib.sha256(code).hexdigest())


class OwnCode:
    """One function. `settings`: the prefix of the two settings that bound it, named in its errors."""

    def __init__(self, file: Path, function: str, *, timeout_s: float, memory_mb: int, settings: str) -> None:
        self._file = file
        self._function = function
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._output = b""  # the newest of what it printed
        self._running = ""  # the hash of what runs
        self._lock = asyncio.Lock()

    def hash(self) -> str:
        """Hash of the file as it is now. Raises OwnCodeFailed."""
        return read(self._file).hash

    async def call(self, *values: Any) -> tuple[Any, str]:
        """Call the function with these JSON values: its result, and the hash of the code that ran. Raises
        OwnCodeFailed: this call failed, and the next one may not."""
        async with self._lock:
            line = json.dumps(values).encode() + b"\n"
            try:
                async with asyncio.timeout(self._timeout_s):
                    process = await self._started()
                    assert process.stdin is not None and process.stdout is not None
                    process.stdin.write(line)
                    await process.stdin.drain()
                    answer = await process.stdout.readline()
            except TimeoutError:
                await self._end()
                raise OwnCodeFailed(f"it took more than {self._timeout_s:g} s ({self._settings}timeout_s)") from None
            except (OSError, ValueError) as error:  # it died, or its answer is longer than MOST_BYTES
                await self._end()
                raise OwnCodeFailed(f"it did not answer ({error}){self._last_words()}") from error
            except asyncio.CancelledError:
                await self._end()  # its answer would be taken for the next call's
                raise
            if not answer.endswith(b"\n"):
                await self._end()
                raise OwnCodeFailed(f"it ended; {self._settings}memory_mb may be too little{self._last_words()}")
            self._tell()
            return _value(answer), self._running

    async def _started(self) -> asyncio.subprocess.Process:
        source = await asyncio.to_thread(read, self._file)
        if self._process is not None and self._process.returncode is None and self._running == source.hash:
            return self._process
        await self._end()
        command = [sys.executable, "-I", str(RUNNER), str(self._memory_mb * MB)]
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            cwd=tempfile.gettempdir(),
            limit=MOST_BYTES,
            start_new_session=True,
        )
        self._running, self._output = source.hash, b""
        self._listening = asyncio.create_task(self._listen(process), name="own-code")
        begin = {"file": str(self._file), "function": self._function, "code": source.code.decode("latin-1")}
        assert process.stdin is not None
        process.stdin.write(json.dumps(begin).encode() + b"\n")
        return process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep the newest of what it prints, and let the rest go: a full pipe would stop it."""
        assert process.stderr is not None
        while piece := await process.stderr.read(65536):
            self._output = (self._output + piece)[-KEPT_WORDS:]

    def _tell(self) -> None:
        if self._output:
            log.info("the user's own code printed", file=str(self._file), end=self._output.decode("utf-8", "replace"))
            self._output = b""

    def _last_words(self) -> str:
        lines = self._output.decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""

    async def stop(self) -> None:
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
        if self._listening is not None:
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                async with asyncio.timeout(1.0):  # a grandchild may hold the pipe
                    await self._listening


def _value(answer: bytes) -> Any:
    """Raises OwnCodeFailed for the function's own error."""
    try:
        result = json.loads(answer)
    except (ValueError, RecursionError):  # its own limit of nesting may be higher
        raise OwnCodeFailed("its answer is not JSON") from None
    if not isinstance(result, dict):
        raise OwnCodeFailed("its answer is not an object")
    if "error" in result:
        raise OwnCodeFailed(str(result["error"])[:400])
    return result.get("value")
