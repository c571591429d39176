"""The address file: how a command finds the running proxy of its home. Imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from config.settings import Settings

ADDRESS_FILE: Final = "serving.json"


def address(settings: Settings) -> str:
    """Where the proxy of this home answers: what it wrote when it started, else what the settings say."""
    file: Path = settings.home / ADDRESS_FILE
    try:
        return str(json.loads(file.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        host = settings.server.host
        return f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"


def local_key(settings: Settings) -> str | None:
    """The key that the running proxy takes from commands of this machine; None where it wrote none."""
    try:
        return str(json.loads((settings.home / ADDRESS_FILE).read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def owner(settings: Settings) -> int | None:
    """The process that wrote the address file; None where there is none."""
    try:
        return int(json.loads((settings.home / ADDRESS_FILE).read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
