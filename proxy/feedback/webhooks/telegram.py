"""Telegram's Bot API: reactions, and `/rl …` as a message or as a reply to one of the bot's.

Owns the check of the secret token, which is all that Telegram offers: it signs neither body nor time. So what is sent
twice is known by its update id, and what comes late by its date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from config.webhooks import PlatformSection
from proxy.feedback.webhooks.base import (
    EventDone,
    Forged,
    Platform,
    PlatformEvent,
    Secrets,
    json_object,
    name_at,
    seconds_at,
    signatures_match,
    text_at,
    value_at,
)

_COMMAND: Final = re.compile(r"/rl(?:@\w{1,64})?(?:\s+(?P<rest>.*))?", re.DOTALL)
# Members of a message that its sender did not write: forwarded, in two versions of the API, or made by another bot; or
# that nobody knows who wrote: sent in the name of a chat, as anonymous admins do, who all are one user then.
_NOT_TYPED: Final = ("forward_origin", "forward_date", "via_bot", "sender_chat")

NO_MESSAGE: Final = "0"  # the id of no message
MOST_TOAST: Final = 200  # characters


class Telegram(Platform):
    name = "telegram"

    def __init__(self, secret_token: str) -> None:
        self._secret = secret_token

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        if not signatures_match(headers.get("x-telegram-bot-api-secret-token", ""), self._secret):
            raise Forged("The request lacks the secret token given to Telegram's setWebhook; nothing was read of it.")
        update = json_object(body)
        id = name_at(update, "update_id")
        event = None if id is None else _reaction(id, update) or _command(id, update) or _tap(id, update, now)
        return () if event is None else (event,)

    def answer(self, body: bytes, outcomes: Sequence[EventDone]) -> web.Response:
        """A command is answered in the chat: Telegram takes a method call as the answer to an update."""
        if not outcomes or outcomes[0].event.kind != "command":
            return super().answer(body, outcomes)
        update = json_object(body)
        if (tap := name_at(update, "callback_query", "id")) is not None:  # a toast
            text = outcomes[0].line[:MOST_TOAST]
            return web.json_response({"method": "answerCallbackQuery", "callback_query_id": tap, "text": text})
        message = value_at(update, "message")
        # Outside of a forum's topics that id is one of a chain of replies, and refused.
        topic = value_at(message, "message_thread_id") if value_at(message, "is_topic_message") is True else None
        return web.json_response({
            "method": "sendMessage",
            "chat_id": value_at(message, "chat", "id"),
            "text": outcomes[0].line,
            "reply_parameters": {"message_id": value_at(message, "message_id"), "allow_sending_without_reply": True},
            **({"message_thread_id": topic} if topic is not None else {}),
        })  # fmt: skip


def make(name: str, key: str, secrets: Secrets, section: PlatformSection) -> Telegram:
    return Telegram(key)


def _reaction(id: str, update: dict[str, Any]) -> PlatformEvent | None:
    """Emoji that the person has on the message from now on: all of it, so nothing of it depends on what came before."""
    reaction = value_at(update, "message_reaction")
    person, chat = name_at(reaction, "user", "id"), name_at(reaction, "chat", "id")  # no user: an anonymous admin
    message, date = name_at(reaction, "message_id"), seconds_at(reaction, "date")
    present = value_at(reaction, "new_reaction") or []  # python-telegram-bot leaves an empty list out
    if not (person and chat and message and date is not None and isinstance(present, list)):
        return None
    time = date + _place_in_second(id)
    emoji = " ".join(name for item in present if (name := name_at(item, "emoji") or name_at(item, "custom_emoji_id")))
    return PlatformEvent("telegram", id, person, chat, message, "reaction" if emoji else "retraction", emoji, time)


def _tap(id: str, update: dict[str, Any], now: float) -> PlatformEvent | None:
    """A tap on a button of rlproxy's; it has no time of its own."""
    tap = value_at(update, "callback_query")
    prefix, _, word = (text_at(tap, "data") or "").partition(":")
    person, chat = name_at(tap, "from", "id"), name_at(tap, "message", "chat", "id")
    message = name_at(tap, "message", "message_id")
    if prefix != "rl" or word not in ("good", "bad") or not (person and chat and message):
        return None
    return PlatformEvent("telegram", id, person, chat, message, "command", word, now)


def _place_in_second(id: str) -> float:
    """Dates are whole seconds, and updates come by several connections: within a second, ids count up."""
    return int(id) % 1_000_000 / 1e6 if id.isascii() and id.isdecimal() else 0.0


def _command(id: str, update: dict[str, Any]) -> PlatformEvent | None:
    """A command that the person typed: a message that they pass on from somebody else is not their command."""
    message = value_at(update, "message")
    if any(value_at(message, mark) is not None for mark in _NOT_TYPED):
        return None
    text, time = text_at(message, "text"), seconds_at(message, "date")
    person, chat = name_at(message, "from", "id"), name_at(message, "chat", "id")
    if not (text and person and chat and time is not None) or (command := _COMMAND.fullmatch(text.strip())) is None:
        return None
    original, channel = value_at(message, "reply_to_message"), chat
    rated_message = name_at(original, "message_id")
    if (elsewhere := value_at(message, "external_reply") or value_at(message, "reply_to_story")) is not None:
        # Not the newest answer here: the person has pointed at another chat, whose message may be hidden.
        channel = name_at(elsewhere, "chat", "id") or chat
        rated_message = name_at(elsewhere, "message_id") or NO_MESSAGE
    message_text = text_at(original, "text") or text_at(original, "caption")
    arguments = command["rest"] or ""
    return PlatformEvent(
        "telegram",
        id,
        person,
        channel,
        rated_message,
        "command",
        arguments,
        time,
        message_text=message_text,
    )
