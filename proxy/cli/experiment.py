"""`rlproxy experiment`: two versions compared on live traffic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, some
from proxy.cli.failing import fail

experiment_app = typer.Typer(help="Two versions compared on live traffic.", no_args_is_help=True, rich_markup_mode=None)


@experiment_app.command()
def start(
    version: Annotated[str, typer.Argument(help="The candidate: v7 or 7.")],
    against: Annotated[str | None, typer.Option(help="The live version.", show_default="the live one")] = None,
    share: Annotated[float, typer.Option(help="Share of conversations that get the candidate.")] = 0.5,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Let a version answer a share of conversations until ratings decide."""
    body: dict[str, Any] = {"version": _number(version), "share": share}
    if against is not None:
        body["against"] = _number(against)
    _show(client_of(home).call("POST", "/rl/experiments", body), as_json)


@experiment_app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """How the running experiment stands, or how the last one ended."""
    _show(client_of(home).call("GET", "/rl/experiments"), as_json)


@experiment_app.command()
def stop(home: Home = None, as_json: AsJson = False) -> None:
    """End it without a decision; the live version stays."""
    _show(client_of(home).call("POST", "/rl/experiments/stop"), as_json)


def _number(version: str) -> int:
    number = "0" if version == "base" else version.removeprefix("v")
    if not number.isdecimal() or len(number) > 9:
        fail(f"{version!r} is not a version: write v7, 7 or base. Nothing was started.", 2)
    return int(number)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    experiment = answer["running"] or next(iter(answer["ended"]), None)
    if experiment is None:
        print("No experiment has run yet; `rlproxy experiment start v7` starts one.")
        return
    from proxy.core.version_names import version_in_words

    names = version_in_words(experiment["version"]), version_in_words(experiment["against"])
    state = "runs" if experiment["outcome"] is None else experiment["outcome"]
    print(f"{names[0]} against {names[1]}: {state}")
    for name, arm in zip(names, (experiment["candidate"], experiment["parent"]), strict=True):
        share = "" if arm["mean"] is None else f" ({arm['mean']:.0%})"
        print(f"  {name}: {arm['liked']} of {some(arm['rated'], 'rated conversation')} liked{share}")
    print(f"  evidence that it is liked more {experiment['up']:.3g} (20 decides), less {experiment['down']:.3g} (10)")
    print(f"  {experiment['reason'] or experiment['needed']}")
    for name, arm in (experiment.get("judged") or {}).items():
        if arm["rated"]:
            print(f"  judges and programs, not counted: {name} {arm['liked']} of {arm['rated']} liked")
