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
from store.file import driver

MESSAGE: Final = ("role", "content", "originalContent", "output")
WHERE_FROM: Final = (
    "name what to read: `rlproxy import open-webui FILE`, where FILE is what Admin Panel → Evaluations → Feedback → "
    "Export as JSON has saved, or Open WebUI's own database, webui.db in its DATA_DIR."
)
NO_CHAT: Final = "Open WebUI has kept no copy of its chat"
_ROWS: Final = """SELECT f.id, f.user_id, f.type, f.data, f.meta, f.snapshot, f.created_at, f.updated_at, u.email
FROM feedback f LEFT JOIN user u ON u.id = f.user_id ORDER BY f.updated_at"""
# Of what is read: a view or a computed column is made by whoever made the file, and may have no end.
_COMPUTED: Final = """SELECT name FROM sqlite_master WHERE lower(name) IN ('feedback', 'user')
AND (type != 'table' OR sql LIKE 'CREATE VIRTUAL%')
UNION ALL SELECT t.value || '.' || c.name FROM json_each('["feedback", "user"]') t, pragma_table_xinfo(t.value) c
WHERE c.hidden > 0"""


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
    messages = {id: message for id, message in chat.items() if isinstance(message, dict)}
    path: list[dict[str, Any]] = []
    message_id = _within(feedback, "meta").get("message_id")
    while isinstance(message_id, str) and message_id in messages and len(path) < len(messages):
        path.append({key: messages[message_id][key] for key in MESSAGE if messages[message_id].get(key)})
        message_id = messages[message_id].get("parentId")
    return path[::-1]


def _of_database(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with closing(driver.connect(file.resolve(), None, read_only=True)) as database:
            if (computed := database.execute(_COMPUTED).fetchone()) is not None:
                raise UnreadableFile(
                    f"{file} is not as Open WebUI makes its database: {computed[0]!r} is computed. Nothing was taken."
                )
            for *plain, email in database.execute(_ROWS):
                id, user_id, kind, data, meta, snapshot, created, updated = plain
                yield _request_of(
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
        feedbacks = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        feedbacks = None
    if not isinstance(feedbacks, list) or not all(
        isinstance(feedback, dict) and "id" in feedback for feedback in feedbacks
    ):
        raise UnreadableFile(
            f"{file} is neither an export of Open WebUI's feedback as JSON nor its database; {WHERE_FROM}"
        )
    for feedback in sorted(feedbacks, key=_changed_at):
        yield _request_of(feedback, _within(feedback, "user").get("email"))


def _changed_at(feedback: Mapping[str, Any]) -> float:
    timestamp = feedback.get("updated_at")
    return timestamp if isinstance(timestamp, int | float) else 0.0


def _request_of(feedback: dict[str, Any], email: str | None) -> dict[str, Any]:
    reduced = {key: value for key, value in feedback.items() if key not in ("snapshot", "user")}
    return {"feedback": reduced, "messages": messages_of(feedback), "rater": email, "how": "earlier"}


def _take(client: HomeClient, feedback: dict[str, Any], total: dict[str, Any]) -> None:
    """Raises Unreachable."""
    line = {"feedback": feedback["feedback"].get("id"), "chat": _within(feedback, "feedback", "meta").get("chat_id")}
    if not feedback["messages"]:
        total["unplaced"].append({**line, "why": NO_CHAT})
        return
    try:
        answer = client.ask("POST", "/v1/feedback/open-webui", feedback)
    except Refused as refused:
        list_name = "unplaced" if refused.status in (404, 409) else "refused"
        total[list_name].append({**line, "why": str(refused)})
    else:
        total["stored" if answer["result"] == "rated" else "known"] += 1


def _say(total: Mapping[str, Any]) -> None:
    unplaced = len(total["unplaced"])
    print(f"{some(total['stored'], 'rating')} taken, {total['known']} were here before, {unplaced} could not be placed")
    for reason, count in Counter(entry["why"] for entry in total["unplaced"]).most_common():
        print(f"{count} of these: {reason}", file=sys.stderr)
    for entry in total["refused"]:
        print(f"feedback {entry['feedback']} was not taken: {entry['why']}", file=sys.stderr)


def _within(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, dict) else {}
