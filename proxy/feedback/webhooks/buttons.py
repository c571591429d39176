"""One tap: 👍 and 👎 that a bot puts under an answer, and takes away once it is rated.

Owns the calls for it, by a bot's token: reactions on Slack and Discord, an inline keyboard on Telegram. Each is made
once more where the platform says when; a failure is logged once a kind and costs the buttons, nothing else. Sources:
Slack `reactions.add`, `reactions.remove`; Discord "Create Reaction", "Delete Own Reaction"; Telegram
`editMessageReplyMarkup`. Not here: Matrix's (`matrix_rooms`), and what a tap means.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
import structlog

from proxy.core.errors import BackendBroke
from proxy.core.json_edit import loads
from proxy.core.upstream import body_of
from proxy.feedback.chat_command import parse
from proxy.feedback.webhooks.base import EventDone, seconds_at, text_at, value_at

log = structlog.get_logger()

TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
MOST_BYTES: Final = 1 << 20
TRIES: Final = 4
LONGEST_WAIT_S: Final = 30.0  # that a platform may ask for before the next try
THUMBS: Final = ("👍", "👎")
CALLBACK: Final = {"👍": "rl:good", "👎": "rl:bad"}  # what Telegram sends of a tap
_NAMES: Final = {"👍": "+1", "👎": "-1"}  # Slack's
_REASONS: Final = ("error", "description", "message")  # members of Slack's, Telegram's and Discord's refusals
# Refusals of what is so already: a button that is there, or gone.
_NO_CHANGE: Final = ("already_reacted", "no_reaction", "message is not modified", "Unknown Emoji")


class Buttons(ABC):
    """Buttons of a platform."""

    @abstractmethod
    async def add(self, channel: str, message_id: str) -> None:
        """Under a message that the bot itself has posted, or may react to."""

    @abstractmethod
    async def take_away(self, channel: str, message_id: str) -> None: ...

    async def follow(self, outcome: EventDone) -> None:
        """Take them away where an event has rated the answer."""
        event = outcome.event
        is_rated = outcome.result == "rated" or (outcome.result == "command" and parse(event.text).rates)
        if is_rated and event.message_id is not None:
            await self.take_away(event.channel, event.message_id)


class Call(NamedTuple):
    """A request to a platform's API."""

    method: str
    url: str
    headers: dict[str, str]
    body: dict[str, Any] | None = None


class Api:
    """A platform's API, asked by a bot's token; the log never has an address, since Telegram's holds the token."""

    def __init__(self, http: aiohttp.ClientSession, name: str) -> None:
        self._http = http
        self._name = name
        self._failures: set[str] = set()  # kinds that the log has

    async def do(self, call: Call) -> None:
        reason = ""
        for _ in range(TRIES):
            try:
                status, answer, wait_s = await self._ask(call)
            except (aiohttp.ClientError, TimeoutError, ValueError, BackendBroke) as error:
                reason = type(error).__name__
                break
            refusal = next((text for key in _REASONS if (text := text_at(answer, key))), "")
            if (status < 300 and value_at(answer, "ok") is not False) or any(words in refusal for words in _NO_CHANGE):
                return
            reason = f"{status} {refusal}".strip()
            if status != 429 or wait_s is None or wait_s > LONGEST_WAIT_S:
                break
            await asyncio.sleep(wait_s)
        if reason not in self._failures:
            self._failures.add(reason)
            log.warning("a platform did not take buttons; said once", platform=self._name, reason=reason)

    async def _ask(self, call: Call) -> tuple[int, Any, float | None]:
        """Status, JSON, and the seconds after which to ask again, where the answer has them."""
        headers = {**call.headers, "accept-encoding": "identity"}
        async with self._http.request(
            call.method, call.url, json=call.body, headers=headers, timeout=TIMEOUT
        ) as response:
            raw = await body_of(response, MOST_BYTES)
            answer = loads(raw) if raw and response.content_type == "application/json" else None
            wait_s = (
                seconds_at(answer, "retry_after")
                or seconds_at(answer, "parameters", "retry_after")
                or seconds_at({"header": response.headers.get("retry-after")}, "header")
            )
            return response.status, answer, wait_s


class SlackButtons(Buttons):
    def __init__(self, http: aiohttp.ClientSession, api: str, token: str) -> None:
        self._api = Api(http, "slack")
        self._url = api
        self._headers = {"authorization": f"Bearer {token}"}

    async def add(self, channel: str, message_id: str) -> None:
        await self._each("add", channel, message_id)

    async def take_away(self, channel: str, message_id: str) -> None:
        await self._each("remove", channel, message_id)

    async def _each(self, verb: str, channel: str, message_id: str) -> None:
        for emoji in THUMBS:
            body = {"channel": channel, "timestamp": message_id, "name": _NAMES[emoji]}
            await self._api.do(Call("POST", f"{self._url}/reactions.{verb}", self._headers, body))


class DiscordButtons(Buttons):
    def __init__(self, http: aiohttp.ClientSession, api: str, token: str) -> None:
        self._api = Api(http, "discord")
        self._url = api
        self._headers = {"authorization": f"Bot {token}"}

    async def add(self, channel: str, message_id: str) -> None:
        await self._each("PUT", channel, message_id)

    async def take_away(self, channel: str, message_id: str) -> None:
        await self._each("DELETE", channel, message_id)

    async def _each(self, method: str, channel: str, message_id: str) -> None:
        if not (channel.isdecimal() and message_id.isdecimal()):
            return  # they become part of a path
        for emoji in THUMBS:
            path = f"channels/{channel}/messages/{message_id}/reactions/{quote(emoji)}/@me"
            await self._api.do(Call(method, f"{self._url}/{path}", self._headers))


class TelegramButtons(Buttons):
    def __init__(self, http: aiohttp.ClientSession, api: str, token: str) -> None:
        self._api = Api(http, "telegram")
        self._url = f"{api}/bot{token}/editMessageReplyMarkup"

    async def add(self, channel: str, message_id: str) -> None:
        row = [{"text": emoji, "callback_data": CALLBACK[emoji]} for emoji in THUMBS]
        await self._edit(channel, message_id, [row])

    async def take_away(self, channel: str, message_id: str) -> None:
        await self._edit(channel, message_id, [])

    async def _edit(self, channel: str, message_id: str, keyboard: list[list[dict[str, str]]]) -> None:
        if message_id.isdecimal():
            body = {"chat_id": channel, "message_id": int(message_id), "reply_markup": {"inline_keyboard": keyboard}}
            await self._api.do(Call("POST", self._url, {}, body))


BY_PLATFORM: Final[dict[str, Callable[[aiohttp.ClientSession, str, str], Buttons]]] = {
    "slack": SlackButtons, "discord": DiscordButtons, "telegram": TelegramButtons
}  # fmt: skip
"""By platform: of a session, the API's address, and the bot's token."""
