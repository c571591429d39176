"""Keys of the agents that `connect` set up: which one an agent shows, and how a new one gets into its settings.

Owns that an agent never has the admin's key, and that one which still opens rlproxy is kept. Not here: what a key may
do (proxy.access.keys), how files are edited (connection).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from config.settings import Settings
from proxy.cli.agents.drift import list_connections
from proxy.cli.common import command_for
from proxy.cli.http import HomeClient
from proxy.client import Refused, Unreachable
from proxy.core.address_file import address


class CannotConnect(Exception):
    """One sentence for the person."""


class ConnectOptions(NamedTuple):
    """How to connect an agent, as a person said it."""

    model: str | None = None
    key: str | None = None
    dry_run: bool = False
    yes: bool = False
    quiet: bool = False
    panel: bool | None = None  # None: as it was connected


def settings_key(settings: Settings) -> str | None:
    """Never the admin's: an agent needs to chat and rate."""
    return settings.server.api_key.get_secret_value() if settings.server.api_key else None


def key_for(settings: Settings, agent: str, record: Mapping[str, Any] | None, options: ConnectOptions) -> str | None:
    """The key that an agent shows; None where rlproxy asks for none. Where the agent has none, one is made. Raises
    CannotConnect."""
    if (key := settings_key(settings)) is not None:
        return key
    client = HomeClient(settings)
    previous: str | None = (record or {}).get("key")
    try:
        is_needed = bool(client.ask("GET", "/rl/keys").get("needed"))
        if not is_needed or (previous and client.opens(previous)):
            return previous if is_needed else None
        return _make(settings, client, agent, options)
    except Unreachable:
        return previous
    except Refused as refused:
        raise CannotConnect(str(refused)) from None


def _make(settings: Settings, client: HomeClient, agent: str, options: ConnectOptions) -> str:
    """One of the role `rate`, named after the agent, where a person says yes. Raises CannotConnect, Refused."""
    command = command_for(f"rlproxy keys create --role rate --name {agent}", settings)
    if options.dry_run or not _agrees(f"This rlproxy asks for a key. Make one for {agent} (role rate)?", options):
        raise CannotConnect(
            f"This rlproxy asks for a key, and {agent} has none that opens it: {command} makes one, and "
            f"`rlproxy connect {agent} --key KEY` puts it in."
        )
    names = {row["name"] for row in client.ask("GET", "/rl/keys")["data"] if not row["revoked_at"]}
    name = next(text for text in (agent, *(f"{agent}-{i}" for i in range(2, len(names) + 3))) if text not in names)
    created = client.ask("POST", "/rl/keys", {"name": name, "role": "rate"})
    print(
        f"made a key for it: {created['name']}, role rate; `rlproxy keys revoke {created['name']}` ends it",
        file=sys.stderr,
    )
    return str(created["key"])


def _agrees(question: str, options: ConnectOptions) -> bool:
    if options.yes:
        return True
    if options.quiet or not sys.stdin.isatty():
        return False
    return input(f"{question} [Y/n] ").strip().lower() in ("", "y", "yes")


def connected_agents(settings: Settings) -> list[str]:
    """The agents whose settings `connect` wrote, by name."""
    return [connection.name for connection in list_connections(settings.home, address(settings))]
