"""`rlproxy connect` and `rlproxy disconnect`: what they show, ask and say. The work is `proxy.cli.agents`'."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from config.errors import SettingsError
from config.settings import Settings
from proxy.cli.agents import agent_keys, connection, matrix
from proxy.cli.agents.agent_keys import CannotConnect, ConnectOptions
from proxy.cli.agents.catalog import AGENTS, OWN_KEY, PANEL_COMMAND, AgentLink, Home, Setup
from proxy.cli.agents.connection import Change
from proxy.cli.agents.paths import UnreadableSettings
from proxy.cli.common import command_for, mask
from proxy.cli.http import HomeClient
from proxy.client import Refused, Unreachable
from proxy.core.address_file import address

WITH_PANEL: Final = ("claude-code", "codex")
MODELS_SHOWN: Final = 6  # names of models


def connect(settings: Settings, agent: str, options: ConnectOptions) -> dict[str, Any]:
    setup = _find_setup(agent)
    home = Home(Path.home(), os.environ)
    try:
        record = connection.load(settings.home, agent)
        link = _link(settings, options.model, options.key or agent_keys.key_for(settings, agent, record, options))
        panel = bool((record or {}).get("panel")) if options.panel is None else options.panel
        if panel and agent not in WITH_PANEL:
            raise CannotConnect(
                f"{agent} runs nothing after a reply; {' and '.join(WITH_PANEL)} do. Run `rlproxy watch`."
            )
        plan: Setup = setup(link._replace(panel=_panel_command(settings) if panel else None), home)
        changes = connection.connecting(plan, record)
    except UnreadableSettings as error:
        raise CannotConnect(str(error)) from None
    changed = any(change.changes for change in changes)
    if not options.quiet:
        _show(changes, link.key)
    if (changed or (record or {}).get("key") != link.key) and not options.dry_run:
        _agree(options.yes or options.quiet or not changed)
        try:
            connection.connect(
                settings.home, agent, changes, record, {"model": link.model, "key": link.key, "panel": panel}
            )
        except OSError as error:
            raise CannotConnect(
                f"{agent} was not connected whole ({error}); `rlproxy disconnect {agent}` undoes it."
            ) from None
    return {
        "agent": agent, "url": link.url, "model": link.model, "changed": changed, "dry_run": options.dry_run,
        "note": f"{plan.note}\n{OWN_KEY}" if link.own_key else plan.note,
        "files": _files(changes, link.key),
    }  # fmt: skip


def connect_matrix(settings: Settings, url: str | None, agents: list[str], options: ConnectOptions) -> dict[str, Any]:
    """Write the registration, or, where all is written, have the homeserver ping. Raises CannotConnect."""
    try:
        homeserver = matrix.homeserver_of(settings, url, agents)
        plan = matrix.setup(settings, _own_url(settings), homeserver)
        record = connection.load(settings.home, "matrix")
        changes = connection.connecting(plan, record)
    except (UnreadableSettings, ValueError, SettingsError) as error:
        raise CannotConnect(str(error)) from None
    changed = any(change.changes for change in changes)
    files = [{"file": str(change.file), "changed": change.changes} for change in changes]
    outcome = {
        "agent": "matrix", "changed": changed, "dry_run": options.dry_run, "files": files,
        "note": plan.note, "ms": None,
    }  # fmt: skip
    if changed:
        if not options.quiet:  # not what is in them: tokens
            print(*(f"to be written: {change.file}" for change in changes if change.changes), sep="\n")
        if not options.dry_run:
            _agree(options.yes or options.quiet)
            try:
                connection.connect(settings.home, "matrix", changes, record)
            except OSError as error:
                raise CannotConnect(
                    f"Matrix was not connected whole ({error}); `rlproxy disconnect matrix` undoes it."
                ) from None
        return outcome
    try:
        outcome["ms"] = matrix.ping(settings, _own_url(settings))
    except matrix.CannotPing as error:
        raise CannotConnect(f"All is written. {error}") from None
    return outcome


def disconnect(settings: Settings, agent: str, *, dry_run: bool, yes: bool, quiet: bool) -> dict[str, Any]:
    is_agent = agent != "matrix"
    if is_agent and not _find_setup(agent)(AgentLink("", "", None), Home(Path.home(), os.environ)).edits:
        raise CannotConnect(f"rlproxy wrote nothing for {agent}, which keeps its settings itself: take it out there.")
    try:
        record = connection.load(settings.home, agent)
        if record is None:
            raise CannotConnect(f"{agent} is not connected from {settings.home}, so there is nothing to undo.")
        changes = connection.disconnecting(record)
    except UnreadableSettings as error:
        raise CannotConnect(str(error)) from None
    if not quiet:
        _show(changes, record.get("key") or agent_keys.settings_key(settings))
    stuck = ", ".join(f"{change.file} is {change.explanation}" for change in changes if change.stuck)
    if not dry_run:
        _agree(yes or quiet)
        try:
            connection.apply(changes)
        except OSError as error:
            raise CannotConnect(
                f"{agent} was not disconnected whole ({error}); the record was kept, try again."
            ) from None
        connection.tidy(record["folders"])
        if stuck:
            asks = {name: record.get(name) for name in ("model", "key", "panel")}
            connection.save(settings.home, agent, changes, record["folders"], asks)  # of the others nothing is left
        else:
            connection.forget(settings.home, agent)
    if stuck:
        raise CannotConnect(
            f"{agent} {'would not be' if dry_run else 'was not'} disconnected whole ({stuck}); the record of that is "
            "kept, so mend it and disconnect again."
        )
    return {
        "agent": agent,
        "dry_run": dry_run,
        "files": _files(changes, record.get("key") or agent_keys.settings_key(settings)),
    }


def put_key(settings: Settings, agents: Sequence[str], key: str) -> dict[str, str | None]:
    """Write a key into the settings of connected agents. Returns by agent why it was not; None where it was."""
    outcome: dict[str, str | None] = {}
    for agent in agents:
        try:
            if not settings.backend.api_key and _foreign(HomeClient(settings), settings):
                raise CannotConnect(
                    "the cloud is asked with the agent's own key: set RLPROXY_BACKEND__API_KEY for rlproxy first, "
                    f"then `rlproxy connect {agent}`"
                )
            record = connection.load(settings.home, agent) or {}
            connect(settings, agent, ConnectOptions(record.get("model"), key, yes=True, quiet=True))
            outcome[agent] = None
        except (CannotConnect, UnreadableSettings, Unreachable) as error:
            outcome[agent] = str(error)
    return outcome


def _panel_command(settings: Settings) -> str:
    program = shutil.which("rlproxy") or f"{sys.executable} -m proxy.cli"
    return command_for(f"{program} {PANEL_COMMAND}", settings).strip("`")


def _find_setup(agent: str) -> Any:
    if agent not in AGENTS:
        raise CannotConnect(f"I do not know the agent {agent!r}; there are {', '.join(AGENTS)}.")
    return AGENTS[agent]


def _link(settings: Settings, model: str | None, key: str | None) -> AgentLink:
    """The running proxy knows its model; without one the person must name it. Raises Unreachable."""
    url = _own_url(settings)
    client = HomeClient(settings)
    name = model or settings.backend.model or _served_model(client)
    own_key = not (key or settings.backend.api_key) and _foreign(client, settings)
    return AgentLink(url, name, key, _window(client, name), own_key)


def _own_url(settings: Settings) -> str:
    url = address(settings)
    if urlsplit(url).hostname in ("0.0.0.0", "::"):  # noqa: S104  it listens everywhere; agents here need one address
        url = f"http://127.0.0.1:{urlsplit(url).port}"
    return url


def _served_model(client: HomeClient) -> str:
    """Raises CannotConnect where several could be meant."""
    try:
        if name := str(client.ask("GET", "/rl/status")["model"]):
            return name
    except Refused as refused:
        raise CannotConnect(str(refused)) from None
    except Unreachable as error:
        raise Unreachable(f"{error} Or name the model: --model NAME.") from None
    names = _list_models(client)
    if len(names) == 1:
        return names[0]
    listing = f"it lists {', '.join(names[:MODELS_SHOWN])}" if names else "it lists none without a key"
    raise CannotConnect(
        f"Nobody has said which model of the backend the agent shall ask for, and {listing}: add --model NAME."
    )


def _list_models(client: HomeClient) -> list[str]:
    """Lists the models that can be asked for; empty where the list wants a key that only agents have."""
    try:
        return [str(model["id"]) for model in client.ask("GET", "/v1/models")["data"] if not model.get("parent")]
    except (Refused, Unreachable, KeyError, TypeError, AttributeError):
        return []


def _foreign(client: HomeClient, settings: Settings) -> bool:
    """Ask the running proxy, which flags may have told."""
    try:
        return bool(client.ask("GET", "/rl/status")["backend"]["foreign"])
    except (Refused, Unreachable, KeyError, TypeError):
        return settings.backend.kind == "openai"


def _window(client: HomeClient, name: str) -> int | None:
    """Read it as vLLM and the built-in backend tell it; agents do without."""
    try:
        models = client.ask("GET", "/v1/models")["data"]
        length = next((m.get("max_model_len") for m in models if m["id"] == name), None)
    except (Refused, Unreachable, KeyError, TypeError, AttributeError):
        return None
    return length if isinstance(length, int) and length > 0 else None


def _show(changes: list[Change], key: str | None) -> None:
    for change in changes:
        if change.changes:
            print(mask(change.diff(), key), end="")
        if change.explanation:
            print(f"{change.file}: {change.explanation}")


def _agree(yes: bool) -> None:
    if not yes and sys.stdin.isatty() and input("Write this? [y/N] ").strip().lower() not in ("y", "yes"):
        raise CannotConnect("Nothing was written.")


def _files(changes: list[Change], key: str | None) -> list[dict[str, Any]]:
    return [
        {
            "file": str(c.file),
            "changed": c.changes,
            "how": c.explanation or None,
            "diff": mask(c.diff(), key),
        }
        for c in changes
    ]
