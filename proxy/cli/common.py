"""Shared parts of all commands: the options that most of them have, how they print JSON and count.

Not here: any command. Heavy imports are inside the functions: `--help` must be quick.
"""

from __future__ import annotations

import json
import os
import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.failing import fail
from proxy.core.terminal import in_json

if TYPE_CHECKING:
    from config.settings import Settings
    from proxy.cli.http import HomeClient

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder with everything rlproxy keeps.", show_default="~/.rlproxy"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OfLine = Annotated[str | None, typer.Option("--line", help="Another line.", show_default="common")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")]


def client_of(home: Path | None) -> HomeClient:
    from proxy.cli.http import HomeClient

    return HomeClient(settings_of({"home": home}))


def of_line(path: str, line: str | None) -> str:
    """The path with the query that asks for a line."""
    from urllib.parse import quote

    return path if line is None else f"{path}{'&' if '?' in path else '?'}line={quote(line, safe='')}"


def settings_of(flags: dict[str, Any]) -> Any:
    from config.errors import SettingsError
    from config.settings import load

    try:
        return load(flags).settings
    except SettingsError as error:
        fail(str(error), 2)


def command_for(text: str, settings: Settings) -> str:
    """Spell an rlproxy command so that it means this home, which need not be the usual one."""
    from config.settings import HOME

    home = settings.home.absolute()
    usual = home == Path(os.environ.get("RLPROXY_HOME") or HOME).expanduser().absolute()
    return f"`{text}`" if usual else f"`{text} --home {shlex.quote(str(home))}`"


def secret_of(settings: Any) -> Any:
    """The database's key, where it has one. Raises StoreError."""
    from store.file.db_key import find

    return find(settings.store.key_from, settings.home)


def refuse_shared(settings: Any) -> None:
    """Fail where the database is PostgreSQL, which has tools of its own for this."""
    if settings.store.address:
        fail("store.url names PostgreSQL: use its own pg_dump and pg_restore. Nothing was changed.", 2)


def unix_seconds(moment: datetime) -> float:
    """Unix seconds of a local time; 0 for one before them, which some clocks cannot even say."""
    return max(moment.timestamp(), 0.0) if moment.year >= 1970 else 0.0


def some(count: int, noun: str) -> str:
    """Write "1 rating" or "2 ratings"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def progress_line(status: dict[str, Any]) -> str:
    """Which version answers, and how far the next run is."""
    from proxy.core.version_names import label

    ratings, run = status["ratings"], status["training"]["run"]
    version = "" if status["trains"] else f"{label(status['live'])} answers · "
    return f"{version}{status['training']['line'] if run is not None else ratings['line']}"


def mask(text: str, *keys: str | None) -> str:
    """Without these keys, where there are any; the longer ones first, should one be part of another."""
    for key in filter(None, keys):
        text = text.replace(key, "**********")
    return text


def print_json(value: Any, indent: int | None = 2) -> None:
    print(in_json(json.dumps(value, indent=indent, ensure_ascii=False)), flush=True)


def show(answer: Any, as_json: bool, text: str) -> None:
    """Print what a command found: as JSON for programs, as `text` for people."""
    if as_json:
        print_json(answer)
    else:
        print(text)
