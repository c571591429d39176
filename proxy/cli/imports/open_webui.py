"""`rlproxy import open-webui`: ratings that were given in Open WebUI before rlproxy heard of them.

Owns how they are read: out of the export of its admin panel, or out of its database, which is only read. Which answers
they are about is the proxy's affair (`proxy.feedback.open_webui`), and so is what is here already.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import typer

from proxy.cli.common import client_of, print_json, some
from proxy.cli.failing import fail
from proxy.cli.http import NO_PROXY, HomeClient
from proxy.cli.imports.export_file import UnreadableFile
from proxy.client import Refused, Unreachable
from store import driver

MESSAGE: Final = ("role", "content", "originalContent", "output")
WHERE_FROM: Final = (
    "name what to read: `rlproxy import open-webui FILE`, where FILE is what Admin Panel → Evaluations → Feedback → "
    "Export as JSON has saved, or Open WebUI's own database, webui.db in its DATA_DIR."
)
NO_CHAT: Final = "Open WebUI has kept no copy of its chat"
_ROWS: Final = """SELECT f.id, f.user_id, f.type, f.data, f.meta, f.snapshot, f.created_at, f.updated_at, u.email
FROM feedback f LEFT JOIN user u ON u.id = f.user_id ORDER BY f.updated_at"""


def import_open_webui(file: Path | None, home: Path | None, as_json: bool) -> None:
    if file is None:
        fail(WHERE_FROM, 2)
    client = client_of(home)
    total: dict[str, Any] = {"stored": 0, "known": 0, "unplaced": [], "refused": []}
    try:
        for feedback in feedbacks(file):
            _take(client, feedback, total)
    except UnreadableFile as error:
        fail(str(error))
    except Unreachable as error:
        fail(f"{error} {some(total['stored'], 'rating')} had been taken; run it again.", NO_PROXY)
    if as_json:
        print_json(total)
    else:
        _say(total)
    if total["refused"]:
        raise typer.Exit(1)


def feedbacks(file: Path) -> Iterator[dict[str, Any]]:
    """Ratings as the proxy takes them, each with its chat up to the rated answer, the oldest first. Raises
    Unreadable."""
    try:
        with file.open("rb") as opened:
            is_database = opened.read(16) == b"SQLite format 3\0"
        yield from _of_database(file) if is_database else _of_export(file)
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read ({error.strerror or error}); nothing was taken.") from None


def messages_of(feedback: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chat in its snapshot up to the rated message, without what no rating needs; empty where it is not there."""
    chat = _within(feedback, "snapshot", "chat", "chat", "history", "messages")
    every = {id: one for id, one in chat.items() if isinstance(one, dict)}
    path: list[dict[str, Any]] = []
    at = _within(feedback, "meta").get("message_id")
    while isinstance(at, str) and at in every and len(path) < len(every):
        path.append({key: every[at][key] for key in MESSAGE if every[at].get(key)})
        at = every[at].get("parentId")
    return path[::-1]


def _of_database(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with closing(driver.connect(file.resolve(), None, read_only=True)) as database:
            for *plain, email in database.execute(_ROWS):
                id, user_id, kind, data, meta, snapshot, created, updated = plain
                yield _ours(
                    {
                        "id": id, "user_id": user_id, "type": kind, "data": json.loads(data or "{}"),
                        "meta": json.loads(meta or "{}"), "snapshot": json.loads(snapshot or "{}"),
                        "created_at": created, "updated_at": updated,
                    },
                    email,
                )  # fmt: skip
    except driver.errors(ValueError, TypeError, RecursionError) as error:
        raise UnreadableFile(
            f"{file} cannot be read as Open WebUI's database ({error}); what came before is taken."
        ) from None


def _of_export(file: Path) -> Iterator[dict[str, Any]]:
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) and "id" in one for one in found):
        raise UnreadableFile(
            f"{file} is neither an export of Open WebUI's feedback as JSON nor its database; {WHERE_FROM}"
        )
    for one in sorted(found, key=_changed_at):
        yield _ours(one, _within(one, "user").get("email"))


def _changed_at(feedback: Mapping[str, Any]) -> float:
    at = feedback.get("updated_at")
    return at if isinstance(at, int | float) else 0.0


def _ours(feedback: dict[str, Any], email: str | None) -> dict[str, Any]:
    kept = {key: value for key, value in feedback.items() if key not in ("snapshot", "user")}
    return {"feedback": kept, "messages": messages_of(feedback), "rater": email, "how": "earlier"}


def _take(client: HomeClient, one: dict[str, Any], total: dict[str, Any]) -> None:
    """Raises Unreachable."""
    line = {"feedback": one["feedback"].get("id"), "chat": _within(one, "feedback", "meta").get("chat_id")}
    if not one["messages"]:
        total["unplaced"].append({**line, "why": NO_CHAT})
        return
    try:
        done = client.ask("POST", "/v1/feedback/open-webui", one)
    except Refused as refused:
        where = "unplaced" if refused.status in (404, 409) else "refused"
        total[where].append({**line, "why": str(refused)})
    else:
        total["stored" if done["result"] == "rated" else "known"] += 1


def _say(total: Mapping[str, Any]) -> None:
    unplaced = len(total["unplaced"])
    print(f"{some(total['stored'], 'rating')} taken, {total['known']} were here before, {unplaced} could not be placed")
    for reason, count in Counter(one["why"] for one in total["unplaced"]).most_common():
        print(f"{count} of these: {reason}", file=sys.stderr)
    for one in total["refused"]:
        print(f"feedback {one['feedback']} was not taken: {one['why']}", file=sys.stderr)


def _within(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, dict) else {}
