"""How a server of this machine was started, where it does not tell that itself: from its command line.

Owns which process is meant: one of the named program with that port among its arguments. Processes of other
people, whose command lines are not shown, are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import psutil

USUAL_PORT: Final = "8080"  # of llama-server and mlx_lm.server alike


def option(url: str, program: str, name: str) -> str | None:
    """The value of `--name` in the command line of the program that answers there."""
    address = urlsplit(url)
    if address.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    for process in psutil.process_iter(["cmdline"]):
        line: Sequence[str] = process.info["cmdline"] or ()
        is_program = any(program in word for word in line[:5])  # after an interpreter and its options, maybe
        is_server = is_program and (argument(line, "--port") or USUAL_PORT) == str(address.port)
        if is_server and (value := argument(line, name)) is not None:
            return value
    return None


def argument(line: Sequence[str], name: str) -> str | None:
    """Read `--name value` or `--name=value`."""
    for number, word in enumerate(line):
        if word == name and number + 1 < len(line):
            return line[number + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
