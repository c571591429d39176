"""What every driver in Python shares: it answers the test, a line of JSON each, from within its client's environment.

The test writes `{"open": {…}}` for a new conversation and `{"say": TEXT}` for what a person types in it; the driver
answers `{"text": …, "id": …}` with what its client shows, or `{"error": …}`. The standard library only.
"""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Setup:
    url: str  # of rlproxy
    model: str
    format: str  # chat, responses, messages, ollama
    stream: bool
    tools: bool  # whether the client has a tool: look(place) -> "seen PLACE"
    folder: Path  # empty, of this conversation
    side: bool = False  # whether the client is to ask for itself as often as it can

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


LIMIT_S = 590.0  # for an answer
Say = Callable[[str], Any]  # a text, or a text and the id that the client shows; may be awaitable

LOOK: dict[str, Any] = {
    "name": "look",
    "description": "Looks at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def look(place: str) -> str:
    """Looks at a place."""
    return f"seen {place}"


def serve(opened: Callable[[Setup], Say]) -> None:
    """Until the test closes its end. What clients print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    say: Say | None = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if "open" in told:
                given = told["open"]
                say = _result(loop, opened(Setup(**{**given, "folder": Path(given["folder"])})))
                found: dict[str, Any] = {}
            else:
                assert say is not None
                shown = _result(loop, say(told["say"]))
                text, id = shown if isinstance(shown, tuple) else (shown, None)
                found = {"text": text, "id": id}
        except Exception:
            found = {"error": traceback.format_exc()}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def _result(loop: asyncio.AbstractEventLoop, value: Any) -> Any:
    return loop.run_until_complete(value) if inspect.isawaitable(value) else value


def run(*command: str, folder: Path, **env: str) -> str:
    """What a program prints; its errors raise RuntimeError."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(done.stderr, file=sys.stderr)
    return done.stdout


class Terminal:
    """A program in a terminal of its own. It waits for a line when it has been quiet, and has shown `ready`
    below the last one. With `draws` it draws its screen, which package `pyte` reads."""

    SIZE = 60, 200  # lines and columns

    def __init__(
        self, *command: str, folder: Path, ready: str = "", draws: bool = False, quiet_s: float = 2.0, **env: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.ready, self._quiet_s, self._screen = ready, quiet_s, self._made_screen() if draws else None
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *self.SIZE, 0, 0))
        more = {**os.environ, **env, "TERM": "xterm-256color" if draws else "dumb", "COLUMNS": str(self.SIZE[1])}
        self._process = subprocess.Popen(
            command, cwd=folder, env=more, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._until_ready()

    def _made_screen(self) -> Any:
        import pyte

        screen = pyte.Screen(self.SIZE[1], self.SIZE[0])
        screen.write_process_input = lambda text: os.write(self._ours, text.encode())  # where the cursor is
        return screen, pyte.ByteStream(screen)

    def press(self, keys: str, ready: str) -> None:
        """Keys that are no line. From then on it waits for a line when it has shown `ready`."""
        self.ready = ready
        os.write(self._ours, keys.encode())
        self._until_ready()

    def say(self, text: str) -> str:
        """What it shows below the line that was typed."""
        os.write(self._ours, text.encode())
        time.sleep(0.5)  # else it takes the end of the line for a part of what is pasted
        os.write(self._ours, b"\r")
        return self._until_ready(text)

    def _until_ready(self, typed: str = "") -> str:
        shown, ends = b"", time.monotonic() + LIMIT_S
        while time.monotonic() < ends:
            readable, _, _ = select.select([self._ours], [], [], self._quiet_s)
            if readable:
                shown += (piece := os.read(self._ours, 1 << 16))
                if self._screen:
                    self._screen[1].feed(piece)
                continue
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
            if self._screen:
                text = " ".join(" ".join(self._screen[0].display).split())
            if typed:
                text = text.rpartition(typed)[2]
            if not self.ready:
                return text
            before, ready, _ = text.rpartition(self.ready)  # notices of what goes on may come below it
            if ready:
                return before
        raise RuntimeError(f"it does not wait for a line: {shown.decode(errors='replace')[-2000:]}")
