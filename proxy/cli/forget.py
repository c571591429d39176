"""`rlproxy forget` and `rlproxy cancel`: what cannot be taken back.

Owns the question before it, and what is said of versions that learned from what goes. What goes is the proxy's word
(forgetting). Heavy imports are inside the commands, as in cli.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from proxy.cli.common import AsJson, Home, client_of, show, some
from proxy.cli.failing import fail


class Kind(StrEnum):
    completion = "completion"
    session = "session"
    user = "user"
    rater = "rater"


def forget(
    what: Annotated[Kind, typer.Argument(help="Of a user all that they asked, of a rater all their ratings.")],
    name: Annotated[str, typer.Argument(help="Its id or name.")],
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Versions that learned from it are trained again without it.")
    ] = False,
    purge_backups: Annotated[
        bool, typer.Option("--purge-backups", help="Copies in the home that hold it are deleted, each whole.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Delete for good what was captured and rated; asks first, and names versions that learned from it."""

    client = client_of(home)
    body: dict[str, Any] = {what.value: name}
    body |= {"retrain": True} if retrain else {}
    body |= {"purge_backups": True} if purge_backups else {}
    if not yes:
        preview = client.call("POST", "/rl/forget", {**body, "dry_run": True})
        _say(_describe(preview, "would go for good", retrain, purge_backups, asks=True))
        if not sys.stdin.isatty():
            fail("nothing was forgotten: nobody is here to ask. --yes says that you are sure.")
        if not _sure("Forget it? [y/N] "):
            fail("nothing was forgotten.")
    report = client.call("POST", "/rl/forget", body)
    show(report, as_json, _describe(report, "are gone"))


def cancel(home: Home = None, as_json: AsJson = False) -> None:
    """End the run under way, or the one that waits; its ratings are fresh again."""

    answer = client_of(home).call("POST", "/rl/cancel")
    show(answer, as_json, f"run {answer['cancelled']} ends; its ratings are fresh again")


def _describe(
    report: dict[str, Any], went: str, retrain: bool = False, purge: bool = False, *, asks: bool = False
) -> str:
    """Deleted data, and what becomes of versions that learned from it; before it is done, by what was asked for."""
    going = f"{some(report['completions'], 'completion')} and {some(report['ratings'], 'rating')}"
    if report.get("reactions"):
        going = f"{some(report['ratings'], 'rating')} and {some(report['reactions'], 'reaction')} on chat platforms"
    lines = [f"{going} {went}."]
    copies = report.get("backups") or {}
    if copies.get("holding"):
        go = ", deleted" if copies["deleted"] else ", which would be deleted whole" if purge else ""
        lines.append(f"Copies that hold them{go}: {', '.join(copies['holding'])}.")
    if copies.get("unread"):
        lines.append(f"Copies that could not be read: {', '.join(copies['unread'])}.")
    if not report["trained"]:
        return "\n".join([*lines, "No version was trained on them."])
    from proxy.core.version_names import versions_in_words

    heirs = f"; built on those: {versions_in_words(report['heirs'])}" if report["heirs"] else ""
    lines.append(f"Trained on them: {versions_in_words(report['trained'])}{heirs}.")
    if report.get("rebuild"):
        lines.append("They are trained again without them: `rlproxy status` says how far that is.")
    elif retrain:
        lines.append("They would be withdrawn at once, and trained again without them.")
    elif asks:
        lines[-1] += " They stay as they are; with --retrain they are trained again without them."
    else:
        lines[-1] += " They stay as they are; `rlproxy promote` another to be rid of them."
    return "\n".join(lines)


def _sure(question: str) -> bool:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
