"""Anything that can sign: Mattermost, a bot of one's own, the OpenClaw plugin.

Owns the signature of the Standard Webhooks specification and the JSON of docs/reference/http-api.md. By hand, since it
is five lines; the tests hold it against the specification's own library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from config.errors import SettingsError
from config.webhooks import PLATFORMS, PlatformSection
from proxy.core.errors import BadRequest
from proxy.core.json_response import as_object, parse_json
from proxy.feedback.webhooks.base import (
    LONGEST,
    MOST_TEXT,
    EventDone,
    EventKind,
    Forged,
    Platform,
    PlatformEvent,
    Secrets,
    check_time,
    seconds_at,
    signatures_match,
)

_KINDS: Final[dict[str, EventKind]] = {"reaction": "reaction", "retraction": "retraction", "command": "command"}


class SignedAnswer(TypedDict):
    result: str
    line: Annotated[str, Field(description="What a person would be told.")]
    rating_id: str | None


class Signed(Platform):
    def __init__(self, name: str, secret: str) -> None:
        """Raises SettingsError where the secret is not base64."""
        self.name = name  # signed and openclaw are two of this class
        try:
            self._key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            self._key = b""
        if len(self._key) < 16:
            raise SettingsError(f"webhooks.{name}.secret must be base64 of 16 bytes or more, with or without whsec_.")

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        id, time = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        check_time(time, now)
        content = f"{id}.{time}.".encode(errors="replace") + body
        expected = "v1," + base64.b64encode(hmac.new(self._key, content, hashlib.sha256).digest()).decode()
        # Each is compared, whatever the others were: a sender that changes its secret signs with both.
        right = [signatures_match(signature, expected) for signature in headers.get("webhook-signature", "").split(" ")]
        if not id or not any(right):
            raise Forged("The request is not signed with the secret of this route; nothing was read of it.")
        if len(id) > LONGEST or not id.isascii():
            raise BadRequest(f"`webhook-id` must be at most {LONGEST} ASCII characters.", param="webhook-id")
        return (self._event(id, body, float(time)),)

    def _event(self, id: str, raw: bytes, signed_at: float) -> PlatformEvent:
        body = as_object(parse_json(raw))
        kind = _KINDS.get(str(body.get("what")))
        if kind is None:
            raise BadRequest('`what` must be "reaction", "retraction" or "command".', param="what")
        person = _text(body, "person")
        text = _text(body, "text", MOST_TEXT if kind == "command" else LONGEST) or ""
        if person is None:
            raise BadRequest("`person` is missing: who did it, by their id on the platform.", param="person")
        message, completion = _text(body, "message_id"), _text(body, "completion_id")
        if kind != "command" and not (message or completion):
            raise BadRequest("Say what it is about: `message_id` or `completion_id`.", param="message_id")
        if kind == "reaction" and not text:
            raise BadRequest("`text` is missing: the emoji, or its name.", param="text")
        if "at" in body and seconds_at(body, "at") is None:
            raise BadRequest("`at` must be a time in Unix seconds.", param="at")
        platform = self._platform(_text(body, "platform", 50))
        return PlatformEvent(
            platform=platform,
            event_id=id,
            person=person,
            channel=_text(body, "channel") or "",
            message_id=message,
            kind=kind,
            text=text.removeprefix("/rl").strip() if kind == "command" else text,
            happened_at=min(
                seconds_at(body, "at") or signed_at, signed_at
            ),  # one in the future would outlast all others
            slot=text if kind != "command" else "",
            message_text=_text(body, "said", MOST_TEXT),
            completion_id=completion,
            session=_text(body, "session", 200),
            shared=platform != self.name,
        )

    def _platform(self, name: str | None) -> str:
        """Each name is of one secret: whoever has another may neither speak for its people nor claim its events."""
        if name in (None, self.name):
            return self.name
        if name in PLATFORMS:
            raise BadRequest(f"`platform` may not be {name}, which has a route of its own.", param="platform")
        if self.name != "signed" or ":" in name:
            raise BadRequest(
                f"`platform` may not be {name}: it is a name without `:`, and the route {self.name} speaks for "
                f"{'no other' if self.name != 'signed' else 'any'}.",
                param="platform",
            )
        return name

    def answer(self, body: bytes, outcomes: Sequence[EventDone]) -> web.Response:
        outcome = outcomes[0]
        reply = SignedAnswer(result=outcome.result, line=outcome.line, rating_id=outcome.rating_id)
        return web.json_response(reply, status=outcome.status)


def make(name: str, key: str, secrets: Secrets, section: PlatformSection) -> Signed:
    return Signed(name, key)


def _text(body: dict[str, Any], key: str, limit: int = LONGEST) -> str | None:
    value = body.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and key != "text":
        value = str(value)  # ids are numbers on some platforms
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > limit:
        raise BadRequest(f"`{key}` must be text of at most {limit} characters.", param=key)
    return value
