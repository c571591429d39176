"""`rlproxy good`, `bad`, `undo` and `chat`: what a person says of an answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from proxy.cli.common import AsJson, Home, client_of, print_json, progress_line, settings_of, show
from proxy.cli.failing import fail

if TYPE_CHECKING:
    from proxy.cli.http import HomeClient

rate_app = typer.Typer()

Rater = Annotated[str | None, typer.Option(help="Who rates.", show_default="owner")]
Session = Annotated[str | None, typer.Option(help="The last main turn of this session.")]
Comment = Annotated[list[str] | None, typer.Argument(help="Why; it is kept and shown.")]
WhatIsWrong = Annotated[list[str] | None, typer.Argument(help="Why; it trains too.")]
Stars = Annotated[int | None, typer.Option(min=1, max=5, help="1 to 5 instead of good; five is best.")]
Completion = Annotated[str, typer.Option("--id", help="The completion; without it the last main turn.")]


@rate_app.command()
def good(
    comment: Comment = None, stars: Stars = None, id: Completion = "", session: Session = None, rater: Rater = None,
    home: Home = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Rate an answer good, or with stars."""
    _rate(f"{stars}/5" if stars else "good", comment, AnswerChoice(id, session, rater), home, as_json)


@rate_app.command()
def bad(
    comment: WhatIsWrong = None, id: Completion = "", session: Session = None, rater: Rater = None, home: Home = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Rate an answer bad."""
    _rate("bad", comment, AnswerChoice(id, session, rater), home, as_json)


@rate_app.command()
def fix(
    text: Annotated[list[str] | None, typer.Argument(help="The better answer; without it your editor opens.")] = None,
    id: Completion = "", session: Session = None, rater: Rater = None, home: Home = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say what the answer should have been; `-` reads it from a pipe."""
    client = client_of(home)
    answer = _find_answer(client, AnswerChoice(id, session, rater))
    correction = " ".join(text or ())
    if correction == "-":
        correction = sys.stdin.read()
    elif not text:
        correction = _edit(answer)
    if not (correction := correction.strip()):
        fail("the better answer has no words, so nothing was sent: `rlproxy fix BETTER TEXT` says it.")
    body = {"completion_id": answer["id"], "rating": "bad", "correction": correction, "rater": rater, "source": "cli"}
    rating = client.call("POST", "/v1/feedback", body)
    if as_json:
        print_json(rating)
        return
    effect = "" if rating["never_trains"] else "; it trains towards your words"
    print(f"corrected: {_name_answer(rating)}{effect}")
    print(_progress(client, rating))


def _find_answer(client: HomeClient, choice: AnswerChoice) -> dict[str, Any]:
    """The one that `good` would rate: its id is kept, so that what a person edits is what they correct."""
    from urllib.parse import quote, urlencode

    query = urlencode({k: v for k, v in (("session", choice.session), ("rater", choice.rater)) if v})
    return dict(client.call("GET", f"/rl/completions/{quote(choice.id or 'last', safe='')}?{query}"))


def _edit(answer: dict[str, Any]) -> str:
    from proxy.cli.watch import edited
    from proxy.client import Refused

    if not sys.stdin.isatty():
        fail("say the better answer: `rlproxy fix BETTER TEXT`, or `rlproxy fix -` with it in a pipe.", 2)
    if answer["status"] == "pending":
        fail("that answer is not finished, so nothing was sent: wait for its end, or name another with --id.")
    try:
        correction = edited(answer["text"] or "")
    except Refused as refused:
        fail(str(refused))
    if correction is None:
        fail("nothing was changed, so nothing was sent.")
    return correction


@rate_app.command()
def skip(id: Completion = "", session: Session = None, home: Home = None, as_json: AsJson = False) -> None:
    """Leave an answer unrated: `watch` does not show it again."""
    from proxy.cli.watch import note_skipped
    from proxy.conversation.first_words import quote_text

    answer = _find_answer(client_of(home), AnswerChoice(id, session, None))
    note_skipped(settings_of({"home": home}).home, answer["id"])
    show({"skipped": answer["id"]}, as_json, f"skipped: {quote_text(answer['text'] or '')} ({answer['id']})")


class AnswerChoice(NamedTuple):
    """The answer that a command is about, and who rates it."""

    id: str
    session: str | None
    rater: str | None


def _rate(rating: str, comment: list[str] | None, choice: AnswerChoice, home: Path | None, as_json: bool) -> None:
    body: dict[str, Any] = {
        "rating": rating, "comment": " ".join(comment or ()) or None, "rater": choice.rater, "source": "cli",
    }  # fmt: skip
    if choice.session and not choice.id:
        body["session"] = choice.session
    else:
        body["completion_id"] = choice.id or "last"
    client = client_of(home)
    answer = client.call("POST", "/v1/feedback", body)
    if as_json:
        print_json(answer)
    else:
        note = ", as before" if answer["duplicate"] else "; replaces your earlier rating" if answer["replaced"] else ""
        word = f"{rating[0]} of 5" if rating.endswith("/5") else rating
        print(f"rated {word}: {_name_answer(answer)}{note}")
        print(_progress(client, answer))


def _progress(client: HomeClient, rating: dict[str, Any]) -> str:
    """How far the next run of the answer's line is; or why that answer never trains."""
    from urllib.parse import quote

    from proxy.client import Refused

    if rating["never_trains"]:
        return f"this answer never trains: {rating['never_trains']}; the rating is kept, and exported"
    line = rating["line"]
    try:
        return progress_line(client.ask("GET", "/rl/status" + (f"?line={quote(line, safe='')}" if line else "")))
    except Refused as refused:  # of a line that is retired
        return str(refused)


@rate_app.command()
def undo(
    rating: Annotated[str, typer.Argument(help="The rating; without it your newest.")] = "last",
    session: Session = None,
    rater: Rater = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take a rating back."""
    from urllib.parse import quote, urlencode

    query = urlencode({k: v for k, v in (("rater", rater), ("session", session)) if v})
    answer = client_of(home).call("DELETE", f"/v1/feedback/{quote(rating, safe='')}?{query}")
    show(answer, as_json, f"taken back: the rating of {_name_answer(answer)}{_describe_stay(answer['trained'])}")


def _describe_stay(versions: list[int]) -> str:
    """Say what an undo leaves as it is."""
    if not versions:
        return ""
    from proxy.core.version_names import versions_in_words

    return (
        f"\n{versions_in_words(versions)} learned from it, and stays so: `rlproxy rollback` goes back a version, "
        "`rlproxy forget completion ID --retrain` has it trained again without this answer"
    )


def _name_answer(rating: dict[str, Any]) -> str:
    """By its first words, which people know; and its id, which no other answer has."""
    id = str(rating["completion_id"])
    return id if rating["answer"] is None else f"{rating['answer']} ({id})"


@rate_app.command()
def answers(
    number: Annotated[int, typer.Option("-n", "--number", min=1, max=1000, help="How many.")] = 20,
    session: Annotated[str | None, typer.Option(help="Those of this session.")] = None,
    unrated: Annotated[bool, typer.Option("--unrated", help="Those that nobody has rated.")] = False,
    side: Annotated[bool, typer.Option("--side", help="Also what agents ask for themselves.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List the newest answers, with their ids and ratings."""
    from urllib.parse import urlencode

    query: dict[str, Any] = {"limit": number, "session": session, "unrated": "1" if unrated else None}
    query["turn"] = None if side else "main"
    filters = urlencode({name: value for name, value in query.items() if value is not None})
    page = client_of(home).call("GET", f"/rl/completions?{filters}")
    if as_json:
        print_json(page)
    elif not page["data"]:
        print("No answer is here yet: send one through rlproxy." if not (session or unrated) else "None is like that.")
    else:
        from proxy.cli.answers import print_answers

        print_answers(page["data"])


@rate_app.command()
def watch(
    session: Annotated[str | None, typer.Option(help="Answers of this session alone.")] = None,
    rater: Rater = None,
    opens_below: Annotated[
        bool, typer.Option("--open", help="Open it below, in tmux, unless it is open; for an agent's hook.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Rate each finished answer with one key, in a split of your terminal."""
    from proxy.cli import watch as panel

    if opens_below:
        print(panel.open_below(settings_of({"home": home})), file=sys.stderr)
        return
    client = client_of(home)
    if as_json:
        panel.print_each(client, session, rater, lambda answer: print_json(answer, indent=None))
    elif not sys.stdin.isatty() or not sys.stdout.isatty():
        fail("watch draws on a terminal; with --json it prints each finished answer as a line.", 2)
    else:
        folder = settings_of({"home": home}).home
        with panel.single_panel(folder):
            panel.Panel(client, session, rater, folder).run()


@rate_app.command()
def ask(
    question: Annotated[list[str], typer.Argument(help="The question; `-` reads it from a pipe.")],
    version: Annotated[str | None, typer.Option("--version", help="v3 or base.", show_default="the live one")] = None,
    model: Annotated[str | None, typer.Option(help="Of a backend with many; without it the proxy's own.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question; the answer is captured, and `rlproxy good` or `bad` rates it."""
    from proxy.cli.chat import ask as ask_question

    text = sys.stdin.read() if question == ["-"] else " ".join(question)
    client = client_of(home)
    name = model or client.call("GET", "/rl/status")["model"]
    if not name:
        fail("this backend has many models; say which one with --model.", 2)
    pin = _existing_version(client, version)
    answer = ask_question(client, name if pin in (None, "live") else f"{name}@{pin}", text, as_json=as_json)
    if as_json:
        print_json({"id": answer.id, "answer": answer.text})
    else:
        print(f"rate it with `rlproxy good` or `rlproxy bad` ({answer.id})", file=sys.stderr)


@rate_app.command()
def chat(
    version: Annotated[str | None, typer.Option("--version", help="v3 or base.", show_default="the live one")] = None,
    vs: Annotated[str | None, typer.Option("--vs", help="Another one beside it; you pick, blindly.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    model: Annotated[str | None, typer.Option(help="Of a backend with many; without it the proxy's own.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0: always the likeliest word.", show_default="0.7; a cloud's own")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Length limit of an answer.", show_default="1024; a cloud's own")
    ] = None,
    home: Home = None,
) -> None:
    """Talk to a version, compare two, rate with one letter."""
    from proxy.cli.chat import Chat

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        fail("chat needs a terminal; for programs there is /v1/chat/completions.", 2)
    client = client_of(home)
    status = client.call("GET", "/rl/status")
    name = model or status["model"]
    if not name:
        fail("this backend has many models; say which one with --model.", 2)
    # Some models of clouds refuse a temperature, or this name of the limit.
    usual = {} if status["backend"]["foreign"] else {"temperature": 0.7, "max_tokens": 1024}
    options = {"temperature": temperature, "max_tokens": max_tokens}
    sampling = {
        key: value
        for key in options
        if (value := options[key] if options[key] is not None else usual.get(key)) is not None
    }
    versions = [_existing_version(client, pin) for pin in (version, vs)]
    Chat(client, name, versions[0], versions[1], system, sampling).run()


def _existing_version(client: HomeClient, version: str | None) -> str | None:
    """Its name as a model has it, `v3` or `base`. Ends the command where there is none."""
    if version in (None, "base", "live"):
        return version
    rows = client.call("GET", "/rl/adapters")["data"]
    if version.removeprefix("v") not in {str(row["version"]) for row in rows}:
        names = ", ".join(["base", *(f"v{row['version']}" for row in rows)])
        fail(f"there is no version {version}; there is {names}.", 2)
    return f"v{version.removeprefix('v')}"
