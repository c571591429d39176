"""Requests as the platforms send them, signed by the platform's own library where it has one that signs."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from nacl.signing import SigningKey
from slack_sdk.signature import SignatureVerifier
from standardwebhooks.webhooks import Webhook

NOW = 1_700_000_000
SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
TELEGRAM_SECRET = "a-Secret_token"
WHATSAPP_SECRET, WHATSAPP_TOKEN = "app-secret", "verify-me"
SIGNED_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OPENCLAW_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
DISCORD_KEY = SigningKey(b"\x07" * 32)
DISCORD_PUBLIC = DISCORD_KEY.verify_key.encode().hex()

Signed = tuple[dict[str, str], bytes]


def slack(body: dict[str, Any] | bytes, now: float = NOW, **form: str) -> Signed:
    raw = urlencode(form).encode() if form else body if isinstance(body, bytes) else json.dumps(body).encode()
    signature = SignatureVerifier(SLACK_SECRET).generate_signature(timestamp=str(int(now)), body=raw)
    assert signature is not None
    kind = "application/x-www-form-urlencoded" if form else "application/json"
    return {
        "x-slack-request-timestamp": str(int(now)), "x-slack-signature": signature, "content-type": kind
    }, raw  # fmt: skip


def telegram(body: dict[str, Any] | bytes, now: float = NOW) -> Signed:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return {"x-telegram-bot-api-secret-token": TELEGRAM_SECRET, "content-type": "application/json"}, raw


def discord(body: dict[str, Any] | bytes, now: float = NOW) -> Signed:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    time = str(int(now))
    signature = DISCORD_KEY.sign(time.encode() + raw).signature.hex()
    return {"x-signature-timestamp": time, "x-signature-ed25519": signature}, raw


def whatsapp(body: dict[str, Any] | bytes, now: float = NOW) -> Signed:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    signature = hmac.new(WHATSAPP_SECRET.encode(), raw, hashlib.sha256).hexdigest()  # as Meta's pages have it
    return {"x-hub-signature-256": f"sha256={signature}"}, raw


def signed(body: dict[str, Any] | bytes, now: float = NOW, id: str = "msg_1", secret: str = SIGNED_SECRET) -> Signed:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    signature = Webhook(secret).sign(id, datetime.fromtimestamp(int(now), UTC), raw.decode("utf-8"))
    return {"webhook-id": id, "webhook-timestamp": str(int(now)), "webhook-signature": signature}, raw


def slack_reaction(
    emoji: str = "+1", *, id: str = "Ev1", person: str = "U1", ts: str = "1700000000.000100", removed: bool = False,
    timestamp: float = NOW, channel: str = "C1",
) -> dict[str, Any]:  # fmt: skip
    return {
        "token": "z26uFbvR1xHJEdHE1OQiO6t8", "team_id": "T1", "api_app_id": "A1", "type": "event_callback",
        "event_id": id, "event_time": int(timestamp),
        "event": {
            "type": "reaction_removed" if removed else "reaction_added", "user": person, "reaction": emoji,
            "item_user": "UBOT", "event_ts": f"{timestamp:.6f}",
            "item": {"type": "message", "channel": channel, "ts": ts},
        },
    }  # fmt: skip


def telegram_reaction(
    *emoji: str, id: int = 1, person: int = 7, message: int = 42, chat: int = -100, timestamp: float = NOW
) -> dict[str, Any]:
    return {
        "update_id": id,
        "message_reaction": {
            "chat": {"id": chat, "type": "supergroup"}, "message_id": message, "date": int(timestamp),
            "user": {"id": person, "is_bot": False, "first_name": "Ann"}, "old_reaction": [],
            "new_reaction": [{"type": "emoji", "emoji": symbol} for symbol in emoji],
        },
    }  # fmt: skip


def telegram_message(
    text: str, *, id: int = 1, person: int = 7, chat: int = -100, reply_to: dict[str, Any] | None = None
) -> dict[str, Any]:
    message: dict[str, Any] = {
        "message_id": 50, "date": NOW, "text": text, "chat": {"id": chat, "type": "group"},
        "from": {"id": person, "is_bot": False, "first_name": "Ann"},
    }  # fmt: skip
    return {"update_id": id, "message": message | ({"reply_to_message": reply_to} if reply_to else {})}


def discord_command(text: str, *, id: str = "900", person: str = "70", channel: str = "60") -> dict[str, Any]:
    options = [{"name": "what", "type": 3, "value": text}] if text else []
    return {
        "id": id, "application_id": "1", "type": 2, "token": "t", "channel_id": channel, "version": 1,
        "member": {"user": {"id": person, "username": "ann"}},
        "data": {"id": "5", "name": "rl", "type": 1, "options": options},
    }  # fmt: skip


def discord_button(
    pressed: str, *, id: str = "901", person: str = "70", message: str = "80", text: str = ""
) -> dict[str, Any]:
    return {
        "id": id, "application_id": "1", "type": 3, "token": "t", "channel_id": "60", "version": 1,
        "user": {"id": person, "username": "ann"}, "data": {"custom_id": pressed, "component_type": 2},
        "message": {"id": message, "content": text},
    }  # fmt: skip


def whatsapp_reaction(
    *emoji: str | None, id: str = "wamid.R", person: str = "491701", message: str = "wamid.M", timestamp: float = NOW
) -> dict[str, Any]:
    """A batch with one reaction for each; None is one that was removed."""
    messages = [
        {
            "from": person, "id": f"{id}{n}", "timestamp": str(int(timestamp) + n), "type": "reaction",
            "reaction": {"message_id": message, **({} if symbol is None else {"emoji": symbol})},
        }
        for n, symbol in enumerate(emoji)
    ]  # fmt: skip
    value = {"messaging_product": "whatsapp", "metadata": {"phone_number_id": "1"}, "messages": messages}
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [{"value": value}]}]}
