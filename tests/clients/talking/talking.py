"""What every driver in Python shares: it answers the test, a line of JSON each, from within its client's environment.

The test writes `{"open": {…}}` for a new conversation and `{"say": TEXT}` for what a person types in it; the driver
answers `{"text": …, "id": …}` with what its client shows, or `{"error": …}`. The standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
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

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


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
        timeout=170,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(done.stderr, file=sys.stderr)
    return done.stdout
