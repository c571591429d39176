"""How a command fails: one sentence on stderr, and an exit status."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer


def fail(message: str, code: int = 1) -> NoReturn:
    text = f"rlproxy: {message}"
    if sys.stderr.isatty():  # for a program it stays one line
        import shutil
        import textwrap

        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)
    raise typer.Exit(code)
