"""Matrix: the events that a homeserver pushes to an application service.

Owns the check of the homeserver's token, and what a transaction's events mean. A reaction's redaction names that event
alone, and so does an edit: the store knows what they were about (`PlatformEvent.undoes`). Source: Matrix specification
1.16, Application Service API and Client-Server API, "Event relationships". Not here: answers into rooms
(`matrix_rooms`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from config.webhooks import MatrixSection
from proxy.core.errors import TooLarge
from proxy.feedback.webhooks.base import (
    MOST_TEXT,
    EventDone,
    Forged,
    Platform,
    PlatformEvent,
    Secrets,
    json_object,
    name_at,
    signatures_match,
    text_at,
    value_at,
)

MOST_EVENTS: Final = 10_000  # of a transaction; Synapse sends a hundred
COMPLETION, PERSON = "org.rlproxy.completion", "org.rlproxy.person"  # members of an answer's content
# Many clients keep lines with a slash for themselves.
_COMMAND: Final = re.compile(r"(?:[/!]rl(?=\s|$)|rl:)(?P<rest>.*)", re.DOTALL)


class Matrix(Platform):
    name = "matrix"

    def __init__(self, hs_token: str, agents: Collection[str]) -> None:
        """`agents`: the user ids whose messages are answers."""
        self._authorization = f"Bearer {hs_token}"
        self._agents = frozenset(agents)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Forged. The token comes with the head, so that no body of a stranger is read."""
        if not signatures_match(headers.get("authorization", ""), self._authorization):
            raise Forged("The request lacks the homeserver's token (hs_token of the registration); nothing was read.")

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        self.check(headers)
        value = json_object(body).get("events")
        events = value if isinstance(value, list) else []
        if len(events) > MOST_EVENTS:
            raise TooLarge(f"A transaction has at most {MOST_EVENTS} events; nothing of it was taken.")
        parsed = (self._event(event, now) for event in events)
        return tuple(event for event in parsed if event is not None)

    def answer(self, body: bytes, outcomes: Sequence[EventDone]) -> web.Response:
        return web.json_response({})

    def _event(self, event: Any, now: float) -> PlatformEvent | None:
        id, room, sender = name_at(event, "event_id"), name_at(event, "room_id"), name_at(event, "sender")
        milliseconds = value_at(event, "origin_server_ts")
        if not (id and room and sender and isinstance(milliseconds, int)) or "state_key" in event:
            return None
        if " " in id or " " in room:  # which parts an id of a command from
            return None
        happened_at = min(max(milliseconds, 0) / 1000, now)  # one in the future would outlast all others
        posted = PlatformEvent("matrix", id, sender, room, None, "command", "", happened_at, received_at=now)
        content, kind = event.get("content"), event.get("type")
        if kind == "m.room.redaction":
            redacted = name_at(event, "redacts") or name_at(content, "redacts")
            return replace(posted, kind="retraction", undoes=redacted) if redacted else None
        if sender in self._agents:
            return _answer(posted, content) if kind == "m.room.message" else None
        if kind == "m.reaction":
            return _reaction(posted, content)
        return _command(posted, content) if kind == "m.room.message" else None


def make(name: str, key: str, secrets: Secrets, section: MatrixSection) -> Matrix:
    return Matrix(key, section.agents)


def _answer(posted: PlatformEvent, content: Any) -> PlatformEvent | None:
    """A message that says which completion it shows; what an agent edits is still linked by its first event."""
    completion = name_at(content, COMPLETION)
    if completion is None or value_at(content, "m.relates_to", "rel_type") == "m.replace":
        return None
    person = name_at(content, PERSON) or ""
    return replace(posted, kind="answer", message_id=posted.event_id, completion_id=completion, person=person)


def _reaction(posted: PlatformEvent, content: Any) -> PlatformEvent | None:
    """Nothing where it was redacted before it came: it has no content then."""
    relation = value_at(content, "m.relates_to")
    message, key = name_at(relation, "event_id"), name_at(relation, "key")
    if value_at(relation, "rel_type") != "m.annotation" or not (message and key):
        return None
    # A custom emoji is the address of a picture, and has its name beside it (MSC4027).
    name = name_at(content, "shortcode") or name_at(content, "com.beeper.reaction.shortcode")
    return replace(posted, kind="reaction", message_id=message, text=name or key, slot=key)


def _command(posted: PlatformEvent, content: Any) -> PlatformEvent | None:
    """`/rl …` that a person typed. An edit speaks anew of what the first text was about; one that leaves no command
    takes its rating back. Its id begins with the room's and the first one's: a redaction of that, in that room, finds
    what came of it."""
    relation = value_at(content, "m.relates_to")
    original = name_at(relation, "event_id") if value_at(relation, "rel_type") == "m.replace" else None
    typed = value_at(content, "m.new_content") if original else content
    body = text_at(typed, "body")
    if body is None or value_at(typed, "msgtype") != "m.text":
        return None
    command = _COMMAND.fullmatch(_without_quote(body).strip())
    if original is not None:
        text = command["rest"].strip() if command else "undo"
        first = f"{posted.channel} {original}"
        return replace(posted, event_id=f"{first} {posted.event_id}", text=text, undoes=first)
    if command is None:
        return None
    message_id = name_at(relation, "m.in_reply_to", "event_id")
    id = f"{posted.channel} {posted.event_id}"
    return replace(posted, event_id=id, message_id=message_id, text=command["rest"].strip())


def _without_quote(body: str) -> str:
    """Without the quote that older clients put before a reply."""
    lines = body[:MOST_TEXT].split("\n")
    count = next((index for index, line in enumerate(lines) if not line.startswith(">")), len(lines))
    return "\n".join(lines[count:]) if count else body
