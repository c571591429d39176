"""`rlproxy keys`: made, listed, revoked, all ended (off), with the proxy running or not.

Owns that the first key can be made before the first start, as one off loopback needs one. Then the store is opened
here, under its lock. Heavy imports are inside the commands, as in cli.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from proxy.cli.common import AsJson, Home, print_json, settings_of, show, some
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from config.settings import Settings
    from proxy.access.keys import Keys

Role = Literal["use", "rate", "admin"]  # as store.records has it, which would slow `--help`

keys_app = typer.Typer(
    help="Keys for other people and machines, each with its role.", no_args_is_help=True, rich_markup_mode=None
)


@keys_app.command()
def create(
    name: Annotated[str, typer.Option(help="Whose it is: a person or a machine. Ratings by it have this name.")],
    role: Annotated[
        Role | None,
        typer.Option(
            help="use (models), rate (rate and read, too) or admin (everything).", show_default="asks; use in a script"
        ),
    ] = None,
    agents: Annotated[
        bool | None,
        typer.Option("--agents/--no-agents", help="Put it into the agents that `connect` set up.", show_default="asks"),
    ] = None,
    line: Annotated[
        str | None, typer.Option("--line", help="The only line that it may use.", show_default="all")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once, and kept as a hash only."""
    from proxy.cli.agents.agent_keys import connected_agents

    settings = settings_of({"home": home})
    asks = not yes and not as_json and sys.stdin.isatty()
    connected = connected_agents(settings)
    if asks and not _state(home)["needed"]:
        _ask_before_closing(connected)
    role = role or (_choose_role() if asks else "use")
    created = _create(home, name, role, line)
    if as_json:
        print_json(created)
        return
    print(created["key"])
    _say(
        f"{created['name']}'s key, role {created['role']}. It is not shown again; `rlproxy keys revoke {name}` ends it."
    )
    if connected and role != "admin" and agents is not False:
        question = f"Put it into {', '.join(connected)}, which rlproxy connected? [Y/n] "
        if agents or (asks and input(question).strip().lower() in ("", "y", "yes")):
            _put_into_agents(settings, connected, created["key"])
    _say("Everybody but commands of this machine shows a key now; `rlproxy keys off` ends that.")


def _ask_before_closing(connected: list[str]) -> None:
    """The first key locks everybody out who has none."""
    agents = f"; {', '.join(connected)}, which rlproxy connected, can have it put in" if connected else ""
    _say(f"With a first key, whoever asks this rlproxy needs one: every agent, and the page in a browser{agents}.")
    if input("Make it? [y/N] ").strip().lower() not in ("y", "yes"):
        fail("no key was made.")


def _choose_role() -> Role:
    while True:
        answer = input("Which role: use (models), rate (rate and read, too), admin (everything)? [rate] ").strip()
        if answer in ("", *get_args(Role)):
            return answer or "rate"  # type: ignore[return-value]  # one of these words
        _say(f"{answer} is not a role")


def _create(home: Path | None, name: str, role: Role, line: str | None) -> Any:
    async def create_in_store(keys: Keys) -> Any:
        from proxy.access.keys import as_json

        if line is not None:
            fail("a key of a line is made while rlproxy runs: start it first. No key was made.")
        key, text = await keys.create(name, role, "admin")
        return {**as_json(key), "key": text}

    of_line = {} if line is None else {"line": line}
    return _ask(home, "POST", "/rl/keys", {"name": name, "role": role, **of_line}, create_in_store)


def _put_into_agents(settings: Settings, agents: list[str], key: str) -> None:
    from proxy.cli.agents.command import put_key

    for agent, problem in put_key(settings, agents, key).items():
        _say(f"{agent}: {problem or 'has it; start it anew'}")


@keys_app.command("list")
def list_keys(home: Home = None, as_json: AsJson = False) -> None:
    """All keys, with their last use, and whether one is asked for."""
    state = _state(home)
    if as_json:
        print_json(state["data"])
        return
    from proxy.cli.tables import show_keys

    show_keys(state["data"])
    for name in state["fixed"]:
        print(f"{name} holds one, too (settings or environment).")
    print(describe_need(state))


def describe_need(state: Mapping[str, Any]) -> str:
    """Say whether a key is asked for, and how that is changed."""
    if not state["needed"]:
        return "None is asked for: only this machine reaches rlproxy, and whoever does may do everything."
    if "server.api_key" in state["fixed"] or any(not key["revoked_at"] for key in state["data"]):
        return "One is asked for, except of commands of this machine."
    return (
        "All are revoked, and one is asked for still, except of commands of this machine: `rlproxy keys create` makes "
        "one, `rlproxy keys off` ends that."
    )


def _state(home: Path | None) -> Any:
    async def list_in_store(keys: Keys) -> Any:
        return {"data": keys.list(), "needed": keys.needed, "fixed": keys.fixed}

    return _ask(home, "GET", "/rl/keys", None, list_in_store)


@keys_app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Its name or id.")], home: Home = None, as_json: AsJson = False
) -> None:
    """End a key, at once and for good."""
    from urllib.parse import quote

    async def revoke_in_store(keys: Keys) -> Any:
        from proxy.access.keys import as_json

        return as_json(await keys.revoke(key, "admin"))

    revoked = _ask(home, "DELETE", f"/rl/keys/{quote(key, safe='')}", None, revoke_in_store)
    show(revoked, as_json, f"{revoked['name']}'s key {revoked['id']} is revoked")


@keys_app.command()
def off(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Revoke all keys, and ask for none any more; on this machine alone."""
    holding = [key["name"] for key in _state(home)["data"] if not key["revoked_at"]]
    if not yes and not as_json and sys.stdin.isatty():
        if holding:
            _say(f"This ends the keys of {', '.join(holding)}.")
        _say("Every program of this machine may then ask, rate and train without a key.")
        if input("Do it? [y/N] ").strip().lower() not in ("y", "yes"):
            fail("nothing was changed.")

    async def open_store(keys: Keys) -> Any:
        await keys.open("admin")
        return {"data": keys.list(), "needed": keys.needed, "fixed": keys.fixed}

    state = _ask(home, "DELETE", "/rl/keys", None, open_store)
    revoked = f"{some(len(holding), 'key')} revoked; " if holding else ""
    show(state, as_json, f"{revoked}no key is asked for. Agents may keep theirs, which says nothing any more.")


def _ask(home: Path | None, method: str, path: str, body: Any, act: Callable[[Keys], Awaitable[Any]]) -> Any:
    """The running proxy's answer; where none runs, the store's own."""
    import asyncio

    from proxy.cli.http import HomeClient
    from proxy.client import Refused, Unreachable
    from proxy.core.errors import ProxyError
    from store.errors import StoreError

    settings = settings_of({"home": home})
    try:
        return HomeClient(settings).ask(method, path, body)
    except Refused as refused:
        fail(str(refused))
    except Unreachable:
        pass
    try:
        return asyncio.run(_act_on_store(settings, act))
    except (ProxyError, StoreError) as error:
        fail(str(error))


async def _act_on_store(settings: Any, act: Callable[[Keys], Awaitable[Any]]) -> Any:
    from proxy.access.keys import Keys
    from store.file.db_key import find
    from store.store import Store

    secret = find(settings.store.key_from, settings.home)
    store = await Store.open(settings.home, secret, url=settings.store.address)
    try:
        keys = Keys(settings.server)
        await keys.start(store)
        return await act(keys)
    finally:
        await store.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr)
