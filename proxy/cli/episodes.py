"""`rlproxy episodes`: a list, or one with its turns."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, some

episodes_app = typer.Typer()


@episodes_app.command()
def episodes(
    episode: Annotated[str | None, typer.Argument(help="One in full: turns, segments, rewards.")] = None,
    group: Annotated[str | None, typer.Option(help="Only of this group.")] = None,
    state: Annotated[str | None, typer.Option(help="open, rewarded or error.")] = None,
    limit: Annotated[int, typer.Option(help="How many, the newest.", min=1, max=1000)] = 20,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Agents' attempts at tasks, with their rewards and the success of each version."""
    from urllib.parse import quote, urlencode

    if episode is not None:
        found = client_of(home).call("GET", f"/rl/episodes/{quote(episode, safe='')}")
        print_json(found) if as_json else _show_one(found)
        return
    query = urlencode({k: v for k, v in {"limit": limit, "group": group, "state": state}.items() if v is not None})
    found = client_of(home).call("GET", f"/rl/episodes?{query}")
    print_json(found) if as_json else _show_all(found)


def _show_all(found: dict[str, Any]) -> None:
    from rich.table import Table

    from proxy.cli.tables import console

    out, counts = console(), found["counts"]
    if not found["data"]:
        out.print("There are no episodes yet; docs/guides/episodes.md shows how to begin.")
        return
    table = Table("episode", "state", "reward", "version", "turns", "group", "run", box=None)
    for one in found["data"]:
        state = one["state"] if one["left_out"] is None else f"{one['state']}, left out: {one['left_out']}"
        table.add_row(
            one["id"], state, _reward(one["reward"]), _version(one["version"]), str(one["turn_count"]),
            one["group"] or "", "" if one["run"] is None else str(one["run"]),
        )  # fmt: skip
    out.print(table)
    versions = Table("version", "split", "episodes", "success", "mean reward", box=None)
    for one in found["versions"]:
        versions.add_row(
            _version(one["version"]), one["split"], str(one["episodes"]), f"{one['success']:.0%}",
            f"{one['mean_reward']:+.2f}",
        )  # fmt: skip
    out.print(versions)
    line = f"{some(counts['rewarded'], 'episode')} rewarded, {counts['open']} open, {counts['error']} with an error"
    if counts["unrewarded"]:
        line += f"; {counts['unrewarded']} open without a request for an hour: their reward is missing"
    out.print(line)


def _show_one(found: dict[str, Any]) -> None:
    from rich.table import Table

    from proxy.cli.tables import console

    out = console()
    out.print(
        f"{found['id']}: {found['state']}, reward {_reward(found['reward']) or 'none'}, {_version(found['version'])}, "
        f"{some(found['segments'], 'segment')}, {some(found['side_turns'], 'side turn')}"
    )
    if found["left_out"]:
        out.print(f"It never trains: {found['left_out']}.")
    if found["error"]:
        out.print(f"Error: {found['error']}")
    table = Table("turn", "segment", "tokens", "reward", "asked", "answered", box=None)
    for index, turn in enumerate(found["turns"]):
        tokens = f"{turn['prompt_tokens'] or '?'} + {turn['tokens'] or '?'}"
        table.add_row(
            str(index), str(turn["segment"]), tokens, _reward(turn["reward"]), turn["asked"][:60], turn["text"][:60]
        )
    out.print(table)


def _reward(value: float | None) -> str:
    return "" if value is None else f"{value:+g}"


def _version(version: int | None) -> str:
    from proxy.core.version_names import label

    return "" if version is None else label(version)
