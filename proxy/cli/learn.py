"""`rlproxy status` and the acts on training and versions: train, pause, resume, cancel, rollback, promote, reset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from proxy.cli.common import AsJson, Home, OfLine, client_of, of_line, print_json, show
from proxy.cli.failing import fail
from proxy.cli.forget import cancel

learn_app = typer.Typer()

COMPARING: Final = "a minute, or several on a busy machine; a run starts after that, also if you end this command"


@learn_app.command()
def status(
    home: Home = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep it up to date until Ctrl-C.")] = False,
    line: OfLine = None,
    as_json: AsJson = False,
) -> None:
    """Show what answers, what is collected, and what training waits for."""
    from proxy.cli import status

    if watch:
        status.watch(client_of(home), line, as_json=as_json, fail=fail)
    else:
        status.show(client_of(home), line, as_json=as_json)


@learn_app.command()
def train(
    tune: Annotated[
        bool, typer.Option("--tune", help="Look for this model's learning rate first, in a short sweep.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show how far the run is, until it has ended.")] = False,
    line: OfLine = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Start a run now, however few ratings there are."""
    if not tune and not follow:
        _act(home, as_json, of_line("/rl/train", line), _describe_start, _describe_comparison)
        return
    from proxy.cli import sweep

    client = client_of(home)
    newest = sweep.newest_run(client)
    path = of_line("/rl/train?tune" if tune else "/rl/train", line)
    started = client.act(path, _describe_comparison)
    if tune:
        sweep.follow(client, newest, started["why"], as_json=as_json)
    else:
        sweep.follow_run(client, newest, started["why"])


@learn_app.command()
def pause(home: Home = None, as_json: AsJson = False) -> None:
    """No training until `resume`; a run under way stops at its next step."""
    _act(home, as_json, "/rl/pause", lambda _: "training is paused")


@learn_app.command()
def resume(home: Home = None, as_json: AsJson = False) -> None:
    """Train again; a run that was stopped goes on from its checkpoint."""
    _act(home, as_json, "/rl/resume", lambda _: "training goes on")


learn_app.command()(cancel)


@learn_app.command()
def rollback(
    home: Home = None,
    base: Annotated[bool, typer.Option("--base", help="All the way to the base model.")] = False,
    line: OfLine = None,
    as_json: AsJson = False,
) -> None:
    """Back to the version that was live before, at once."""
    path = of_line("/rl/rollback?base" if base else "/rl/rollback", line)
    _act(home, as_json, path, _describe_live, _describe_load)


@learn_app.command()
def promote(
    version: Annotated[str, typer.Argument(help="v3, 3 or base.")],
    line: Annotated[str | None, typer.Option("--line", help="Of `base`.", show_default="the version's")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make any version live."""
    from urllib.parse import quote

    _act(home, as_json, of_line(f"/rl/promote/{quote(version, safe='')}", line), _describe_live, _describe_load)


@learn_app.command()
def reset(home: Home = None, line: OfLine = None, as_json: AsJson = False) -> None:
    """Start over from the base model; nothing is deleted, `promote` brings a version back."""
    outcome = "the base model answers, and the next run starts from it"
    _act(home, as_json, of_line("/rl/reset", line), lambda _: outcome, _describe_load)


def _act(
    home: Path | None,
    as_json: bool,
    path: str,
    say: Callable[[Any], str],
    describe: Callable[[Any], str] = lambda status: f"training {status['training']['line']}",
) -> None:
    answer = client_of(home).act(path, describe)
    show(answer, as_json, say(answer))


def _describe_comparison(status: dict[str, Any]) -> str:
    return f"{status['match']['line']} ({COMPARING})"


def _describe_load(status: dict[str, Any]) -> str:
    from proxy.core.version_names import version_in_words

    return f"the version is loaded and tried before it goes live; until then {version_in_words(status['live'])} answers"


def _describe_start(answer: dict[str, Any]) -> str:
    return f"a training run starts with {answer['why']}; `rlproxy status --watch` shows how far it is"


def _describe_live(answer: dict[str, Any]) -> str:
    from proxy.core.version_names import version_in_words

    return f"{version_in_words(answer['live'])} is live"


@learn_app.command()
def adapters(
    version: Annotated[str, typer.Argument(help="v3: what it changed, in three prompts.", show_default=False)] = "",
    line: Annotated[str | None, typer.Option("--line", help="Of one line.", show_default="of all")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """The versions: what each changed, and its gate."""
    if version:
        _show_version(version, home, as_json)
        return
    listing = client_of(home).call("GET", of_line("/rl/adapters", line))
    if as_json:
        print_json(listing["data"])
        return
    from proxy.cli.tables import show_adapters

    show_adapters(listing)


def _show_version(version: str, home: Path | None, as_json: bool) -> None:
    from urllib.parse import quote

    adapter = client_of(home).call("GET", f"/rl/adapters/{quote(version, safe='')}")
    if as_json:
        print_json(adapter)
        return
    from proxy.cli.tables import show_changes

    show_changes(adapter)


@learn_app.command()
def runs(
    run: Annotated[int | None, typer.Argument(help="One run in full: gate, choices, odd replies.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """The training runs, with what the gate said."""
    answer = client_of(home).call("GET", "/rl/runs" if run is None else f"/rl/runs/{run}")
    if as_json:
        print_json(answer["data"] if run is None else answer)
        return
    from proxy.cli.tables import show_run, show_runs

    if run is None:
        show_runs(answer["data"])
    else:
        show_run(answer)


@learn_app.command("why")
def explain(
    id: Annotated[
        str, typer.Argument(help="Of an answer or of a rating, as `rlproxy answers` shows them; `last` is the newest.")
    ] = "last",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Follow a rating to the tokens that it pushed and the version that came of it."""
    from urllib.parse import quote

    explanation = client_of(home).call("GET", f"/rl/why/{quote(id, safe='')}")
    if as_json:
        print_json(explanation)
        return
    from proxy.cli.answers import explanation_lines
    from proxy.core.terminal import escape_controls

    for line in explanation_lines(explanation):
        print(escape_controls(line))
