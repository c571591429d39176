"""Needs of `rlproxy service` from whatever starts services here, and running its commands."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

COMMAND_S: Final = 120.0  # a stop waits for running answers and an optimiser step
STOP_S: Final = 90  # for the same, before what is left is killed


class NoService(Exception):
    """One sentence: what could not be done, and what to do."""


class State(NamedTuple):
    installed: bool
    running: bool
    line: str
    pid: int | None = None


class Manager(Protocol):
    kind: str
    name: str

    @property
    def file(self) -> Path: ...

    def text(self) -> str:
        """Text of `file`."""

    def install(self) -> None:
        """Write it, and start it now and at every login; where it runs, start it anew. Raises NoService."""

    def remove(self) -> bool:
        """Stop it and take it out; False where there was none. Raises NoService."""

    def state(self) -> State:
        """Raises NoService."""

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """The command that prints them."""


def run(command: Sequence[str], *, may_fail: bool = False) -> str:
    """Its output. Raises NoService."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoService(f"`{' '.join(command)}` did not work: {error}.") from None
    if completed.returncode != 0 and not may_fail:
        lines = (completed.stderr or completed.stdout).strip().splitlines()
        raise NoService(
            f"`{' '.join(command)}` did not work: {lines[-1] if lines else f'status {completed.returncode}'}"
        )
    return completed.stdout
