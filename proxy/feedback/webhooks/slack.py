"""Slack: the Events API (reactions) and the slash command `/rl`.

Owns Slack's v0 signature and the shapes of its requests. Slack sends an event again, up to three times, when the answer
is not a 2xx within three seconds. The copies have the same event id.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import structlog
from aiohttp import web

from config.webhooks import PlatformSection
from proxy.feedback.webhooks.base import (
    EventDone,
    EventKind,
    Forged,
    Platform,
    PlatformEvent,
    Secrets,
    check_time,
    json_object,
    name_at,
    seconds_at,
    signatures_match,
    text_at,
    value_at,
)
from proxy.feedback.webhooks.fetch_text import TextOf, get_json

log = structlog.get_logger()

FORM = "application/x-www-form-urlencoded"


class Slack(Platform):
    name = "slack"

    def __init__(self, signing_secret: str) -> None:
        self._secret = signing_secret.encode()

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        if _is_form(headers) and b"ssl_check=1" in body.split(b"&"):
            return ()  # Slack looks at the certificate, unsigned, and wants a 200: as slack_bolt answers
        time = headers.get("x-slack-request-timestamp", "")
        check_time(time, now)
        signed = hmac.new(self._secret, b"v0:" + time.encode() + b":" + body, hashlib.sha256).hexdigest()
        if not signatures_match(headers.get("x-slack-signature", ""), "v0=" + signed):
            raise Forged("The request is not signed with the Slack app's secret; nothing was read of it.")
        event = _command(body, now) if _is_form(headers) else _reaction(json_object(body))
        return () if event is None else (event,)

    def answer(self, body: bytes, outcomes: Sequence[EventDone]) -> web.Response:
        request = json_object(body)
        if request.get("type") == "url_verification" and (challenge := text_at(request, "challenge")):
            return web.Response(text=challenge)
        if outcomes and outcomes[0].event.kind == "command":
            return web.json_response({"response_type": "ephemeral", "text": outcomes[0].line})
        return super().answer(body, outcomes)


def make(name: str, key: str, secrets: Secrets, section: PlatformSection) -> Slack:
    return Slack(key)


def text_source(http: aiohttp.ClientSession, api: str, token: str) -> TextOf:
    """`conversations.history`; for a message in a thread, which is not in it, `conversations.replies`."""

    async def text_of(event: PlatformEvent) -> str | None:
        query = {"channel": event.channel, "latest": event.message_id or "", "inclusive": "true", "limit": "1"}
        for method, extra in (("history", {}), ("replies", {"ts": event.message_id or ""})):
            url = f"{api}/conversations.{method}"
            body = await get_json(http, url, {**query, **extra}, {"authorization": f"Bearer {token}"})
            if isinstance(body, dict) and body.get("ok") is not True:
                log.warning("Slack did not give a message", method=method, error=body.get("error"))
            messages = value_at(body, "messages")
            for message in messages if isinstance(messages, list) else []:
                if value_at(message, "ts") == event.message_id:
                    return text_at(message, "text")
        return None

    return text_of


def _is_form(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == FORM


def _command(body: bytes, now: float) -> PlatformEvent | None:
    """The slash command; it does not say which message it is about."""
    try:
        fields = {key: values[0] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
    except ValueError:  # no UTF-8, or too many fields
        return None
    id, person, channel = name_at(fields, "trigger_id"), name_at(fields, "user_id"), name_at(fields, "channel_id")
    if fields.get("command") != "/rl" or not (id and person and channel):
        return None
    text = html.unescape(fields.get("text", ""))  # Slack escapes & < > in what a person typed
    return PlatformEvent("slack", id, person, channel, None, "command", text, now)


def _reaction(body: dict[str, Any]) -> PlatformEvent | None:
    event = value_at(body, "event")
    event_type = value_at(event, "type")
    if body.get("type") != "event_callback" or event_type not in ("reaction_added", "reaction_removed"):
        return None
    id, person, emoji = name_at(body, "event_id"), name_at(event, "user"), name_at(event, "reaction")
    channel, message = name_at(event, "item", "channel"), name_at(event, "item", "ts")
    time = seconds_at(event, "event_ts") or seconds_at(body, "event_time")
    if not (id and person and emoji and channel and message and time):
        return None
    kind: EventKind = "reaction" if event_type == "reaction_added" else "retraction"
    return PlatformEvent("slack", id, person, channel, message, kind, emoji, time, slot=emoji)
