"""The address file: how a command finds the running proxy of its home, and how that knows that it is meant.

Imports nothing heavy.
"""

from __future__ import annotations

import ipaddress
import json
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from config.settings import Settings
from store.file.lock import is_held

ADDRESS_FILE: Final = "serving.json"
HOME_HEADER: Final = "x-rl-home"  # of commands: the home that they are for


def address(settings: Settings) -> str:
    """Where the proxy of this home answers: what it wrote when it started, else what the settings say."""
    if url := _written(settings).get("url"):
        return str(url)
    host = settings.server.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def local_key(settings: Settings) -> str | None:
    """The key that the running proxy takes from commands of this machine; None where it wrote none."""
    key = _written(settings).get("key")
    return str(key) if key else None


def owner(settings: Settings) -> int | None:
    """The process that wrote the address file; None where there is none."""
    pid = _written(settings).get("pid")
    return pid if isinstance(pid, int) else None


def is_starting(settings: Settings) -> bool:
    """Tell whether a process holds this home and has not said where it answers: a model may take minutes to load."""
    return is_held(settings.home) and not _written(settings)


def home_header(settings: Settings, url: str) -> dict[str, str]:
    """The settings' port may be another home's proxy's by now. No other machine is told which paths are here."""
    if not _on_this_machine(urlsplit(url).hostname or ""):
        return {}
    return {HOME_HEADER: quote(os.fsencode(os.path.realpath(settings.home)))}


def is_home(home: Path, quoted_path: str) -> bool:
    """Tell whether a command that sent this is for this home, by whatever path it knows it."""
    path = os.fsdecode(unquote_to_bytes(quoted_path))
    try:
        return path == os.path.realpath(home) or os.path.samefile(path, home)
    except (OSError, ValueError):
        return False


def _on_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback or address.is_unspecified  # it listens everywhere, and is asked from here


def _written(settings: Settings) -> dict[str, Any]:
    """Read it if that proxy runs: a process that was killed leaves its file, and the kernel lets go of its lock."""
    try:
        entry = json.loads((settings.home / ADDRESS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return entry if isinstance(entry, dict) and is_held(settings.home) else {}
