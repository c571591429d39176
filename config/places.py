"""Places where runs train, as a person writes them: "local", "ssh://me@host:2222/folder", "slurm".

Owns what such a text means. Not here: what a place does (trainer.places).
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

HOW: Final = 'write "local", "ssh://[user@]host[:port][/folder]" or "slurm[:///folder]"'

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # no option of ssh, nothing for a shell
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9a-f:]+(%[A-Za-z0-9]+)?")


class PlaceAddress(NamedTuple):
    """`folder` is empty where the place's own default counts."""

    kind: Literal["local", "ssh", "slurm"]
    host: str = ""
    user: str = ""
    port: int = 0  # 0: as ssh's own configuration says
    folder: str = ""


def parse(text: str) -> PlaceAddress:
    """Raises ValueError with one sentence on what is wrong and how to write it."""
    if text == "local":
        return PlaceAddress("local")
    if text == "slurm":
        return PlaceAddress("slurm")
    parts = urlsplit(text)
    if parts.scheme not in ("ssh", "slurm") or parts.query or parts.fragment or parts.password:
        raise ValueError(f"{text!r} is not a place: {HOW}")
    folder = unquote(parts.path).rstrip("/")
    if any(not character.isprintable() for character in folder):
        raise ValueError(f"the folder of {text!r} has characters that no folder should have")
    if parts.scheme == "slurm":
        if parts.netloc:
            raise ValueError(f"{text!r} names a host, but rlproxy has to run where `sbatch` is: {HOW}")
        return PlaceAddress("slurm", folder=folder)
    host, user = parts.hostname or "", parts.username or ""
    if not _HOST.fullmatch(host) or (user and not _NAME.fullmatch(user)):
        raise ValueError(f"{text!r} does not name a host: {HOW}")
    try:
        port = parts.port or 0
    except ValueError:
        raise ValueError(f"the port of {text!r} is not a number from 1 to 65535") from None
    return PlaceAddress("ssh", host, user, port, folder)
