"""Events of a run while it runs: one JSON line an event, on stdout and in progress.jsonl.

Owns the event names of trainer/CONTRACT.md and the flag that asks a run to stop. A reader that has gone away
never stops a run: the file has every line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Final, Self


def rounded(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics for people and for JSON, which knows no NaN."""
    return {name: round(float(value), 6) for name, value in metrics.items() if math.isfinite(value)}


class Stopped(Exception):
    """The run was asked to stop, and did at a point from where it can go on."""


BEAT_S: Final = 20.0  # between two signs of life


class Stop:
    """Set by SIGTERM, SIGINT or a closed stdin; looked at between micro-batches and after each step."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.on_check: Callable[[], None] | None = None  # whoever looks is at work

    def ask(self, reason: str) -> None:
        self.reason = self.reason or reason

    def check(self) -> None:
        if self.on_check is not None:
            self.on_check()
        if self.reason:
            raise Stopped(self.reason)

    def on_signals(self) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            self.ask(f"got {signal.Signals(number).name}")

        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, handler)

    def on_closed_stdin(self) -> None:
        def watch() -> None:
            with contextlib.suppress(OSError, ValueError):
                while os.read(sys.stdin.fileno(), 4096):
                    pass
            self.ask("stdin closed: the process that started this run has gone")

        threading.Thread(target=watch, name="watch-stdin", daemon=True).start()


class Progress:
    def __init__(self, folder: Path, out: IO[str] | None = None) -> None:
        self._file = (folder / "progress.jsonl").open("a", encoding="utf-8")
        self._out = out
        self._listeners: list[Callable[[dict[str, Any]], None]] = []
        self._last_event = time.monotonic()

    def add_listener(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Told of every event from now on."""
        self._listeners.append(listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._file.close()

    def alive(self) -> None:
        """Said now and then in long work: who hears nothing for an hour takes the run for hung."""
        if time.monotonic() - self._last_event > BEAT_S:
            self.event("alive")

    def event(self, event: str, **fields: Any) -> None:
        self._last_event = time.monotonic()
        members = {"event": event, "at": round(time.time(), 2)} | fields
        line = json.dumps(members, ensure_ascii=False) + "\n"
        self._file.write(line)
        self._file.flush()
        if self._out is not None:
            try:
                self._out.write(line)
                self._out.flush()
            except OSError:  # nobody reads any more
                self._out = None
        for listener in self._listeners:
            listener(members)

    def phase(self, phase: str, **fields: Any) -> None:
        self.event("phase", phase=phase, **fields)

    def choice(self, name: str, value: Any, reason: str) -> None:
        self.event("choice", name=name, value=value, why=reason)

    def warning(self, message: str) -> None:
        self.event("warning", message=message)
