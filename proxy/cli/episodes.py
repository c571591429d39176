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
        episode_body = client_of(home).call("GET", f"/rl/episodes/{quote(episode, safe='')}")
        print_json(episode_body) if as_json else _show_one(episode_body)
        return
    query = urlencode({k: v for k, v in {"limit": limit, "group": group, "state": state}.items() if v is not None})
    listing = client_of(home).call("GET", f"/rl/episodes?{query}")
    print_json(listing) if as_json else _show_all(listing)


def _show_all(listing: dict[str, Any]) -> None:
    from rich.table import Table

    from proxy.cli.tables import console

    out, counts = console(), listing["counts"]
    if not listing["data"]:
        out.print("There are no episodes yet; docs/guides/episodes.md shows how to begin.")
        return
    table = Table("episode", "state", "reward", "version", "turns", "group", "run", box=None)
    for episode in listing["data"]:
        state = (
            episode["state"] if episode["left_out"] is None else f"{episode['state']}, left out: {episode['left_out']}"
        )
        state = state if episode["prompt"] is None else f"{state}, rollout"
        table.add_row(
            episode["id"], state, _reward(episode["reward"]), _version(episode["version"]), str(episode["turn_count"]),
            episode["group"] or "", "" if episode["run"] is None else str(episode["run"]),
        )  # fmt: skip
    out.print(table)
    versions = Table("version", "split", "episodes", "success", "mean reward", box=None)
    for row in listing["versions"]:
        split = "rollouts" if row["rollouts"] else row["split"]
        versions.add_row(
            _version(row["version"]), split, str(row["episodes"]), f"{row['success']:.0%}",
            f"{row['mean_reward']:+.2f}",
        )  # fmt: skip
    out.print(versions)
    line = f"{some(counts['rewarded'], 'episode')} rewarded, {counts['open']} open, {counts['error']} with an error"
    if counts["unrewarded"]:
        line += f"; {counts['unrewarded']} open without a request for an hour: their reward is missing"
    out.print(line)


def _show_one(episode: dict[str, Any]) -> None:
    from rich.table import Table

    from proxy.cli.tables import console

    out = console()
    out.print(
        f"{episode['id']}: {episode['state']}, reward {_reward(episode['reward']) or 'none'}, "
        f"{_version(episode['version'])}, {some(episode['segments'], 'segment')}, "
        f"{some(episode['side_turns'], 'side turn')}"
    )
    if episode["left_out"]:
        out.print(f"It never trains: {episode['left_out']}.")
    if episode["error"]:
        out.print(f"Error: {episode['error']}")
    table = Table("turn", "segment", "tokens", "reward", "asked", "answered", box=None)
    for index, turn in enumerate(episode["turns"]):
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
