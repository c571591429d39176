"""WhatsApp's Cloud API: reactions to messages of the business number.

Owns Meta's signature of the body, the handshake of the subscription, and the shape of its batches. Meta signs no time
and sends for up to a week what was not answered. An event is known by the id of the message that carries it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import Any

from config.webhooks import PlatformSection
from proxy.feedback.webhooks.base import (
    EventKind,
    Forged,
    Platform,
    PlatformEvent,
    Secrets,
    json_object,
    name_at,
    seconds_at,
    signatures_match,
    value_at,
)


class WhatsApp(Platform):
    name = "whatsapp"

    def __init__(self, app_secret: str, verify_token: str | None) -> None:
        self._secret = app_secret.encode()
        self._token = verify_token

    def subscribe(self, query: Mapping[str, str]) -> str:
        """Answer Meta's GET with its challenge. Raises Forged."""
        is_verified = self._token is not None and signatures_match(query.get("hub.verify_token", ""), self._token)
        if query.get("hub.mode") != "subscribe" or not is_verified:
            raise Forged("This is not a subscription with the verify token in webhooks.whatsapp.verify_token.")
        return query.get("hub.challenge", "")

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        signed = hmac.new(self._secret, body, hashlib.sha256).hexdigest()
        if not signatures_match(headers.get("x-hub-signature-256", ""), "sha256=" + signed):
            raise Forged("The request is not signed with the Meta app's secret; nothing was read of it.")
        messages = _messages(json_object(body))
        return tuple(event for message, user in messages if (event := _reaction(message, user, now)) is not None)


def make(name: str, key: str, secrets: Secrets, section: PlatformSection) -> WhatsApp:
    return WhatsApp(key, secrets("verify_token"))


def _messages(body: dict[str, Any]) -> Iterator[tuple[Any, str | None]]:
    """Each message, and the user id of its contact, for who has a user name instead of a number to show."""
    for entry in _list(body.get("entry")):
        for change in _list(value_at(entry, "changes")):
            contacts = _list(value_at(change, "value", "contacts"))
            user = name_at(contacts[0], "user_id") if len(contacts) == 1 else None
            yield from ((message, user) for message in _list(value_at(change, "value", "messages")))


def _reaction(message: Any, user: str | None, now: float) -> PlatformEvent | None:
    id, person = name_at(message, "id"), name_at(message, "from") or user
    rated_message = name_at(message, "reaction", "message_id")
    time = seconds_at(message, "timestamp")
    if value_at(message, "type") != "reaction" or not (id and person and rated_message and time is not None):
        return None
    emoji = name_at(message, "reaction", "emoji") or ""
    # A chat is one with a person, so the channel is their number, too.
    kind: EventKind = "reaction" if emoji else "retraction"
    return PlatformEvent("whatsapp", id, person, person, rated_message, kind, emoji, time, received_at=now)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
