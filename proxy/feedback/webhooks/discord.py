"""Discord's interactions: the command `/rl` and buttons under a reply.

Owns the Ed25519 check and the shapes of interactions. Reactions do not come this way, but by the Gateway
(`discord_gateway`). PyNaCl does the check, as Discord's own pages have it, and comes with the extra `discord`. Python
brings no Ed25519, and nothing else here needs a library of cryptography.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp import web

from config.webhooks import PlatformSection
from proxy.core.errors import Unsupported
from proxy.feedback.webhooks.base import (
    EventDone,
    Forged,
    Platform,
    PlatformEvent,
    Secrets,
    check_time,
    json_object,
    name_at,
    text_at,
    value_at,
)
from proxy.feedback.webhooks.fetch_text import TextOf, get_json

PING, COMMAND, COMPONENT, COMPLETION = 1, 2, 3, 4
SAY, CHOICES = 4, 8  # answer with a message; with completions of what is being typed
ONLY_THEM: Final = 64  # that only the person who asked can see
SUBCOMMAND: Final = 1
BUTTON: Final = "rl"  # a button's custom_id: rl:good, rl:bad, rl:1 … rl:5; then, if its maker knows it, :COMPLETION_ID


class Discord(Platform):
    name = "discord"

    def __init__(self, public_key: str) -> None:
        try:
            from nacl.signing import VerifyKey
        except ImportError:
            raise Unsupported("webhooks.discord needs PyNaCl: install rlproxy[discord], or unset public_key.") from None
        self._key = VerifyKey(bytes.fromhex(public_key))

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> tuple[PlatformEvent, ...]:
        time = headers.get("x-signature-timestamp", "")
        check_time(time, now)
        if not self._signed(headers.get("x-signature-ed25519", ""), time.encode() + body):
            raise Forged("The request is not signed with the Discord application's key; nothing was read of it.")
        event = _event(json_object(body), now)
        return () if event is None else (event,)

    def _signed(self, signature: str, message: bytes) -> bool:
        from nacl.exceptions import CryptoError

        try:
            self._key.verify(message, bytes.fromhex(signature))
        except (CryptoError, ValueError):
            return False
        return True

    def answer(self, body: bytes, outcomes: Sequence[EventDone]) -> web.Response:
        kind = json_object(body).get("type")
        if kind == PING:
            return web.json_response({"type": PING})
        if kind == COMPLETION:
            return web.json_response({"type": CHOICES, "data": {"choices": []}})
        line = outcomes[0].line if outcomes else "rlproxy: I know `/rl` and my own buttons, not this."
        return web.json_response({"type": SAY, "data": {"content": line[:2000], "flags": ONLY_THEM}})


def make(name: str, key: str, secrets: Secrets, section: PlatformSection) -> Discord:
    return Discord(key)


def text_source(http: aiohttp.ClientSession, api: str, token: str) -> TextOf:
    async def text_of(event: PlatformEvent) -> str | None:
        if not (event.channel.isdecimal() and (event.message_id or "").isdecimal()):
            return None  # they become part of a path
        url = f"{api}/channels/{event.channel}/messages/{event.message_id}"
        return text_at(await get_json(http, url, {}, {"authorization": f"Bot {token}"}), "content")

    return text_of


def _event(body: dict[str, Any], now: float) -> PlatformEvent | None:
    id, channel = name_at(body, "id"), name_at(body, "channel_id")
    person = name_at(body, "member", "user", "id") or name_at(body, "user", "id")
    if not (id and channel and person):
        return None
    if body.get("type") == COMMAND and value_at(body, "data", "name") == "rl":
        return PlatformEvent(
            "discord", id, person, channel, None, "command", _line(value_at(body, "data", "options")), now
        )
    if body.get("type") == COMPONENT and (pressed := name_at(body, "data", "custom_id")):
        kind, _, arguments = pressed.partition(":")
        word, _, completion = arguments.partition(":")
        message, message_text = name_at(body, "message", "id"), text_at(body, "message", "content")
        if kind == BUTTON and word and message:
            completion_id = completion or None
            return PlatformEvent(
                "discord", id, person, channel, message, "command", word, now, "", message_text, completion_id
            )
    return None


def _line(options: Any, depth: int = 0) -> str:
    """`good why` out of a text option, or of a subcommand `good` with one."""
    words: list[str] = []
    for option in options if isinstance(options, list) and depth < 3 else []:
        if value_at(option, "type") == SUBCOMMAND:
            words.append(f"{value_at(option, 'name')} {_line(value_at(option, 'options'), depth + 1)}")
        elif isinstance(value := value_at(option, "value"), str | int | float):
            words.append(str(value))
    return " ".join(words).strip()
