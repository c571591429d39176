"""`rlproxy lessons`: comments that act at once in later prompts, listed, edited, removed, brought back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, show

lessons_app = typer.Typer(help="Comments that act at once, in later prompts.", rich_markup_mode=None)

Id = Annotated[str, typer.Argument(help="Its id, as `rlproxy lessons` shows it.")]


@lessons_app.callback(invoke_without_command=True)
def lessons(context: typer.Context, home: Home = None, as_json: AsJson = False) -> None:
    """Comments that act at once, in later prompts."""
    if context.invoked_subcommand is None:
        list_lessons(home=home, as_json=as_json)


@lessons_app.command("list")
def list_lessons(home: Home = None, as_json: AsJson = False) -> None:
    """All lessons, newest first, with those that have ended."""
    listing = client_of(home).call("GET", "/rl/lessons")
    if as_json:
        print_json(listing)
        return
    if not listing["enabled"]:
        print("lessons are off: set `enabled = true` under [lessons] in rlproxy.toml, and start rlproxy again")
    for lesson in listing["data"]:
        print(f"{lesson['id']}  {_state(lesson)}: {' '.join(lesson['text'].split())}")
        print(
            f"    of: {' '.join(lesson['question'].split())[:100]}" + (f"  ({lesson['why']})" if lesson["why"] else "")
        )


@lessons_app.command()
def edit(
    lesson: Id,
    text: Annotated[str | None, typer.Argument(help="Its new words.")] = None,
    always: Annotated[
        bool | None, typer.Option("--always/--topic", help="For every question, or for those on its topic.")
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Other words, or for every question."""
    if text is None and always is None:
        raise typer.BadParameter("say its new words, --always or --topic")
    changes = {"text": text, "always": always}
    _change(home, as_json, "PATCH", lesson, {k: v for k, v in changes.items() if v is not None})


@lessons_app.command()
def remove(lesson: Id, home: Home = None, as_json: AsJson = False) -> None:
    """It acts no more; its rating stays, and trains. `restore` brings it back."""
    _change(home, as_json, "DELETE", lesson, None)


@lessons_app.command()
def restore(lesson: Id, home: Home = None, as_json: AsJson = False) -> None:
    """Active again."""
    _change(home, as_json, "PATCH", lesson, {"active": True})


def _change(home: Path | None, as_json: bool, method: str, lesson: str, body: Any) -> None:
    from urllib.parse import quote

    answer = client_of(home).call(method, f"/rl/lessons/{quote(lesson, safe='')}", body)
    show(answer, as_json, f"{answer['id']}  {_state(answer)}: {answer['text']}")


def _state(lesson: dict[str, Any]) -> str:
    if lesson["state"] != "active":
        return str(lesson["state"])
    learned = f", learned by v{lesson['learned']}" if lesson["learned"] else ""
    return ("every question" if lesson["always"] else "its topic") + learned
