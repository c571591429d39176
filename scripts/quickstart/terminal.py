"""A shell that knows nothing but what it is given, typed into a command at a time; what it says is read.

Owns that a `cd` or an activated environment lasts, that a command that fails raises, and that nothing outlives it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path

END_MARK = "--the-command-is-done--"
STOP_S = 20.0


class Failed(Exception):
    """A step did not do what it should; one sentence and what was said."""


class Terminal:
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        # bash, as in most people's terminals; what is typed comes by its standard input, so commands have none.
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env=env, text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, command: str, *, shows: str = "", limit_s: float = 900.0) -> str:
        """Run a command and return what it said. Raises Failed where it fails, or does not show `shows`."""
        self._type(command)
        output, code = self._until(END_MARK, limit_s)
        if code != "0":
            raise Failed(f"`{command}` ended with {code or 'the terminal'}: {output.strip()[-600:]}")
        if shows not in output:
            raise Failed(f"`{command}` did not show {shows!r}: {output.strip()[-600:]}")
        return output

    def begin(self, command: str, *, shows: str, limit_s: float = 300.0) -> None:
        """One that stays: until it shows that."""
        self._type(command)
        output, remainder = self._until(shows, limit_s)
        if remainder is None:
            raise Failed(f"`{command}` did not show {shows!r}: {output.strip()[-600:]}")

    def interrupt(self) -> None:
        """Ctrl-C: what runs in it ends by itself, with 0."""
        os.killpg(self._bash.pid, signal.SIGINT)
        output, code = self._until(END_MARK, 60.0)
        if code != "0":
            raise Failed(f"Ctrl-C ended it with {code}: {output.strip()[-600:]}")

    def _type(self, command: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n{END_MARK}%s\\n' $?\n")
        self._bash.stdin.flush()

    def _until(self, text: str, limit_s: float) -> tuple[str, str | None]:
        """Wait for a text: what was said before it, and the rest of its line; None where it did not come."""
        output, ends = "", time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                return output + f"\n(nothing more within {limit_s:.0f} s)", None
            if line is None:
                return output, None
            head, match, tail = line.partition(text)
            if match:
                return output + head, tail.strip()
            if END_MARK in line and text != END_MARK:
                return output, None
            output += line

    def close(self) -> None:
        """And all that still runs in it."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._bash.wait(STOP_S)
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()
        self._reader.join(STOP_S)
        self._bash.stdout.close()
