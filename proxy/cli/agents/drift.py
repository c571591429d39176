"""Are the agents that were connected still so? Looked at, never mended: that is `rlproxy connect` again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from proxy.cli.agents import connection
from proxy.cli.agents.paths import UnreadableSettings


class AgentConnection(NamedTuple):
    name: str
    problem: str | None  # it is not as `connect` left it; None: it is


def list_connections(
    home: Path, url: str, is_rejected: Callable[[str | None], bool] = lambda key: False
) -> tuple[AgentConnection, ...]:
    """Every agent with a record in this home; `url` is where rlproxy answers now. `is_rejected`: whether a key, or
    None, gets nobody in."""
    connections = []
    for file in sorted((home / "agents").glob("*.json")):
        try:
            record = connection.load(home, file.stem)
            reason = _astray(record, url, is_rejected) if record else None
        except UnreadableSettings as error:
            reason = str(error)
        connections.append(AgentConnection(file.stem, reason))
    return tuple(connections)


def _astray(record: dict[str, Any], url: str, is_rejected: Callable[[str | None], bool]) -> str | None:
    lost = connection.find_lost(record)
    if lost:
        return f"{', '.join(lost)} {'was' if len(lost) == 1 else 'were'} changed or removed since it was connected"
    for port in sorted(_ports(record)):
        if port != urlsplit(url).port:
            return f"it asks port {port} of this machine, and rlproxy answers at {url}"
    if is_rejected(key := record.get("key")):
        return "its key gets it in no more" if key else "it shows no key, and rlproxy asks for one"
    return None


def _ports(record: dict[str, Any]) -> set[int]:
    """Find those of the addresses on this machine that were written for it."""
    text = json.dumps([setting["value"] for file in record["files"] for setting in file["sets"]])
    return {int(port) for port in re.findall(r"https?://(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)", text)}
