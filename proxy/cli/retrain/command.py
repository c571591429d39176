"""`rlproxy retrain`: people's ratings so far, once more, on another base.

Owns the options, the question before it begins, and following it. The retrain goes on when this command ends, and after
a restart of the proxy. Heavy imports are inside the functions, as in cli.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from proxy.cli.common import AsJson, Home, OfLine, print_json, settings_of
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from proxy.cli.http import HomeClient

retrain_app = typer.Typer()
LOOK_S: Final = 1.0
INTERRUPTED: Final = 130  # as a shell reports Ctrl-C
GOES_ON: Final = "the retrain goes on without this command; `rlproxy retrain` follows it again"


@retrain_app.command()
def retrain(
    weights: Annotated[
        str | None, typer.Option("--weights", help="The new base: a folder or a hub id.", show_default="train.weights")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="Leave out an answer, by its id, or all that are `flagged`; several times."),
    ] = None,
    line: OfLine = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and begin nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the one under way; its versions so far stay.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Replay all ratings on another base, or follow the retrain under way."""
    from proxy.cli.http import HomeClient

    settings = settings_of({"home": home})
    client = HomeClient(settings)
    if stop:
        _show(client.call("DELETE", "/rl/retrain"), as_json)
        return
    if weights is None and not without:
        if dry_run or line:
            fail("say on which weights: `rlproxy retrain --weights FOLDER`.", 2)
        _follow(client, as_json)
        return
    body = {"weights": _whole(weights), "without": list(without or ()), "line": line}
    _plan(client, settings, body, quiet=as_json and not dry_run, as_json=as_json)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            fail("nothing was begun: nobody is here to ask. --yes says that you are sure.")
        print("Begin? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            fail("nothing was begun.")
    client.call("POST", "/rl/retrain", body)
    _follow(client, as_json)


def _whole(weights: str | None) -> str | None:
    """A folder by its whole path: the proxy runs elsewhere."""
    if weights is None:
        return None
    folder = Path(weights).expanduser()
    return str(folder.absolute()) if folder.exists() else weights


def _plan(client: HomeClient, settings: Any, body: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    from proxy.cli.retrain.words import describe_plan, expected_seconds

    plan = client.call("POST", "/rl/retrain", {**body, "dry_run": True})
    seconds = expected_seconds(plan, settings)
    if as_json and not quiet:
        print_json({**plan, "seconds": None if seconds is None else round(seconds)})
    else:
        print(describe_plan(plan, seconds), file=sys.stderr if as_json else sys.stdout, flush=True)


def _follow(client: HomeClient, as_json: bool) -> None:
    """Say how far it is, until it is over."""
    previous_line = ""
    try:
        for report, line in _looks(client):
            if report["state"] == "over":
                break
            if line != previous_line:
                print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
            previous_line = line
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        print(f"\n{GOES_ON}", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
    _show(report, as_json)
    if not report["versions"]:
        raise typer.Exit(1)


def _looks(client: HomeClient) -> Iterable[tuple[dict[str, Any], str]]:
    """The retrain, and a line on it with the stage of its run."""
    while True:
        report = client.call("GET", "/rl/retrain")
        if report["state"] == "over":
            yield report, ""
            return
        training = client.call("GET", "/rl/status")["training"]
        stage = f"; {training['line'].split(', about')[0]}" if training["run"] else ""
        yield report, f"{report['line']}{stage}"


def _show(report: dict[str, Any], as_json: bool) -> None:
    from proxy.cli.common import show
    from proxy.cli.retrain.words import describe_outcome

    show(report, as_json, describe_outcome(report))
