"""Asking a person at a terminal: a line out, a line in, a default for Enter.

Owns that nobody is asked who is not there, and that an end of input is an interruption like Ctrl-C. Not here: what is
asked (questions).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """Ctrl-C, Ctrl-D, or a terminal that went away."""


class InvalidAnswer(Exception):
    """Not an answer; the message says what would be one."""


class Console:
    """`out`: stderr where stdout is for a program."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def say(self, text: str = "") -> None:
        print(text, file=self._out, flush=True)

    def ask(self, text: str, read: Callable[[str], T]) -> T:
        """Until `read` takes the answer; it raises Wrong, and gets "" for Enter."""
        while True:
            print(f"{text} ", end="", file=self._out, flush=True)
            try:
                line = sys.stdin.readline()
            except KeyboardInterrupt:
                line = ""
            if not line:
                print(file=self._out)
                raise Interrupted
            try:
                return read(line.strip())
            except InvalidAnswer as wrong:
                self.say(f"  {wrong}")

    def agree(self, text: str, *, default: bool) -> bool:
        def read(line: str) -> bool:
            if not line:
                return default
            if line.lower() in ("y", "yes", "n", "no"):
                return line.lower()[0] == "y"
            raise InvalidAnswer("y or n, please.")

        return self.ask(f"{text} [{'Y/n' if default else 'y/N'}]", read)
