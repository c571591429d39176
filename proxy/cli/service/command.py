"""`rlproxy service`: install, remove, status, logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy.cli.common import AsJson, Home, settings_of
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from proxy.cli.service.managers import Manager

service_app = typer.Typer(
    help="rlproxy as a service of yours: started at login, and again when it fails (systemd, launchd).",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@service_app.command()
def install(
    home: Home = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start rlproxy now and at every login, with the settings of its home."""
    from proxy.cli.service.managers import NoService

    manager = _manager(home)
    description = {"file": str(manager.file), "kind": manager.kind, "name": manager.name, "text": manager.text()}
    if not dry_run:
        try:
            manager.install()
        except NoService as error:
            fail(str(error))
    if as_json:
        print(json.dumps({**description, "dry_run": dry_run}, indent=2))
    elif dry_run:
        print(f"{description['text']}\nwould be written to {manager.file}")
    else:
        print(f"{manager.name} runs, and starts at every login ({manager.file}). `rlproxy service logs` shows its log.")
        if manager.kind == "systemd":
            print("It ends when you log out of all sessions, unless you run: loginctl enable-linger")


@service_app.command()
def remove(home: Home = None, as_json: AsJson = False) -> None:
    """Stop it and take it out; what rlproxy keeps stays."""
    from proxy.cli.service.managers import NoService

    manager = _manager(home)
    try:
        was_installed = manager.remove()
    except NoService as error:
        fail(str(error))
    if as_json:
        print(json.dumps({"file": str(manager.file), "removed": was_installed}, indent=2))
    else:
        print(f"{manager.name} is stopped and removed" if was_installed else f"{manager.name} was not installed")


@service_app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Tell whether it runs. Exit codes: 0 it does, 1 it does not or is not installed."""
    from proxy.cli.service.managers import NoService

    manager = _manager(home)
    try:
        state = manager.state()
    except NoService as error:
        fail(str(error))
    if as_json:
        print(json.dumps({"name": manager.name, "file": str(manager.file), **state._asdict()}, indent=2))
    else:
        print(f"{manager.name} {state.line}")
    if not state.running:
        raise typer.Exit(1)


@service_app.command()
def logs(
    home: Home = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="And what comes, until Ctrl-C.")] = False,
) -> None:
    """Its last lines."""
    import subprocess

    command = _manager(home).logs(lines, follow=follow)
    try:
        completed = subprocess.run(command)
    except KeyboardInterrupt:
        return
    except OSError as error:
        fail(f"`{command[0]}` could not be run ({error}).")
    if completed.returncode != 0:
        fail(f"`{' '.join(command)}` ended with status {completed.returncode}.")


def _manager(home: Path | None) -> Manager:
    from proxy.cli.service.managers import find

    manager: Manager | None = find(settings_of({"home": home}).home.absolute())
    if manager is None:
        fail(
            "Neither systemd --user nor launchd runs here, so there is nothing that would start rlproxy; run "
            "`rlproxy serve` with what starts services on this machine."
        )
    return manager
