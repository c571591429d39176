"""`rlproxy keys`: made, listed, revoked, with the proxy running or not.

Owns that the first key can be made before the first start, as one off loopback needs one. Then the store is opened
here, under its lock. Heavy imports are inside the commands, as in cli.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from proxy.cli.common import AsJson, Home, print_json, settings_of, show
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from proxy.access.keys import Keys

keys_app = typer.Typer(
    help="Keys for other people and machines, each with its role.", no_args_is_help=True, rich_markup_mode=None
)


@keys_app.command()
def create(
    name: Annotated[str, typer.Option(help="Whose it is: a person or a machine. Ratings by it have this name.")],
    role: Annotated[
        Literal["use", "rate", "admin"],
        typer.Option(help="use (models), rate (rate and read, too) or admin (everything)."),
    ] = "use",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once, and kept as a hash only."""

    async def create_in_store(keys: Keys) -> Any:
        from proxy.access.keys import as_json

        key, text = await keys.create(name, role, "admin")
        return {**as_json(key), "key": text}

    created = _ask(home, "POST", "/rl/keys", {"name": name, "role": role}, create_in_store)
    if as_json:
        print_json(created)
        return
    print(created["key"])
    _say(
        f"{created['name']}'s key, role {created['role']}. It is not shown again; `rlproxy keys revoke {name}` ends it."
    )
    _say("From now on everybody but commands of this machine shows a key: agents need one in their settings, too.")


@keys_app.command("list")
def list_keys(home: Home = None, as_json: AsJson = False) -> None:
    """All keys, with their last use."""

    async def list_in_store(keys: Keys) -> Any:
        return {"data": keys.list()}

    rows = _ask(home, "GET", "/rl/keys", None, list_in_store)["data"]
    if as_json:
        print_json(rows)
        return
    from proxy.cli.tables import show_keys

    show_keys(rows)


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

    store = await Store.open(settings.home, find(settings.store.key_from, settings.home))
    try:
        keys = Keys(settings.server)
        await keys.start(store)
        return await act(keys)
    finally:
        await store.close()


def _say(text: str) -> None:
    import sys

    print(text, file=sys.stderr)
