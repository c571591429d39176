"""`rlproxy line`: several adapters of one base, each with its own ratings and versions."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, show

line_app = typer.Typer(
    help="Several adapters of one base, each with its own ratings and versions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(help="The line.")]
Users = Annotated[list[str] | None, typer.Option("--user", help="Whose requests it answers; may come several times.")]
Agents = Annotated[list[str] | None, typer.Option("--agent", help="Which agents' requests; may come several times.")]


@line_app.command()
def create(
    name: Annotated[str, typer.Argument(help="Small letters, digits, `._-`.")],
    start: Annotated[str, typer.Option("--from", help="common, base, v7 or another line.")] = "common",
    user: Users = None,
    agent: Agents = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Begin a line: from now on it has ratings and versions of its own."""
    body = {"name": name, "from": start, "users": user or [], "agents": agent or []}
    line = client_of(home).call("POST", "/rl/lines", body)
    show(line, as_json, f"the line {name} answers as `{line['model']}`, and begins with {_version(line['live'])}")


@line_app.command("list")
def list_lines(home: Home = None, as_json: AsJson = False) -> None:
    """Show what answers in each line, and what is collected."""
    lines = client_of(home).call("GET", "/rl/lines")["data"]
    if as_json:
        print_json(lines)
        return
    from proxy.cli.tables import console, table_of

    grid = table_of("line", "answers", "ratings", "versions", "for")
    for line in lines:
        answers = "retired" if line["retired_at"] else _version(line["live"])
        members = ", ".join([*line["users"], *line["agents"]])
        members = members or ("everybody else" if line["created_at"] is None else "")
        grid.add_row(line["name"], answers, f"{line['fresh']} of {line['needed']}", str(line["versions"]), members)
    console().print(grid)


@line_app.command()
def change(name: Name, user: Users = None, agent: Agents = None, home: Home = None, as_json: AsJson = False) -> None:
    """Say anew whose requests a line answers; `--user ''` is nobody's."""
    body: dict[str, Any] = {}
    for member, names in (("users", user), ("agents", agent)):
        if names is not None:
            body[member] = [each for each in names if each]
    line = client_of(home).call("POST", f"/rl/lines/{quote(name, safe='')}", body)
    members = ", ".join([*line["users"], *line["agents"]]) or "whoever names it"
    show(line, as_json, f"the line {name} answers {members}")


@line_app.command()
def retire(name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """End a line: it answers nobody; its ratings and versions stay."""
    line = client_of(home).call("DELETE", f"/rl/lines/{quote(name, safe='')}")
    show(line, as_json, f"the line {name} answers nobody any more; `rlproxy line restore {name}` brings it back")


@line_app.command()
def restore(name: Name, home: Home = None, as_json: AsJson = False) -> None:
    """Bring a retired line back, with the version that was live."""
    line = client_of(home).call("POST", f"/rl/lines/{quote(name, safe='')}/restore")
    show(line, as_json, f"the line {name} answers again, by {_version(line['live'])}")


def _version(version: int) -> str:
    from proxy.core.version_names import version_in_words

    return version_in_words(version)
