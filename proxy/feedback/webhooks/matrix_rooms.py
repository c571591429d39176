"""Calls into Matrix rooms, by the token of the application service and in an agent's name.

Owns the client calls: the text of a message, the answer to a command, a tick, and the two buttons of an answer. Each
write has an id made of the event that it follows, so that a homeserver that repeats an event gets no second one.
Source: Matrix specification 1.16, Client-Server API, and "Identity assertion" of the Application Service API.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import aiohttp
import structlog

from config.webhooks import MatrixSection
from proxy.core.errors import BackendBroke
from proxy.core.json_edit import loads
from proxy.core.upstream import body_of
from proxy.feedback.chat_command import parse
from proxy.feedback.webhooks.base import EventDone, PlatformEvent, name_at, text_at, value_at
from proxy.feedback.webhooks.buttons import THUMBS, Buttons

log = structlog.get_logger()

TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
MOST_BYTES: Final = 1 << 20
TICK: Final = "✅"


class MatrixRooms(Buttons):
    def __init__(self, http: aiohttp.ClientSession, section: MatrixSection, as_token: str) -> None:
        self._http = http
        self._section = section
        self._headers = {"authorization": f"Bearer {as_token}", "accept-encoding": "identity"}
        self._failures: set[str] = set()  # kinds of failure that the log has; each once, or a busy room fills it

    async def text_of(self, event: PlatformEvent) -> str | None:
        """The text of the message that an event is about, where an agent wrote it."""
        message = await self._call("GET", f"rooms/{_in_path(event.channel)}/event/{_in_path(event.message_id or '')}")
        is_answer = value_at(message, "sender") in self._section.agents
        return text_at(message, "content", "body") if is_answer else None

    async def follow(self, outcome: EventDone) -> None:
        """Show people that an event was taken. One that is nothing to rlproxy, as an edit of a chat's words, shows
        nothing."""
        event = outcome.event
        if outcome.result == "ignored":
            return
        if event.kind == "command":
            await (self._tick(event) if _is_rated(outcome) else self._reply(event, outcome.line))
        elif outcome.result == "linked" and outcome.status == 201 and event.message_id:
            await self.add(event.channel, event.message_id)
        elif outcome.result == "rated" and event.message_id:
            await self.take_away(event.channel, event.message_id)

    async def add(self, channel: str, message_id: str) -> None:
        if self._section.buttons:
            for emoji in THUMBS:
                await self._react(channel, message_id, emoji)

    async def take_away(self, channel: str, message_id: str) -> None:
        for emoji in THUMBS if self._section.buttons else ():
            if button := await self._react(channel, message_id, emoji):
                path = f"rooms/{_in_path(channel)}/redact/{_in_path(button)}/{_in_path(f'gone {button}')}"
                await self._call("PUT", path, {})

    async def _tick(self, event: PlatformEvent) -> None:
        await self._react(event.channel, _own_id(event), TICK)

    async def _reply(self, event: PlatformEvent, line: str) -> None:
        content = {"msgtype": "m.notice", "body": line, "m.relates_to": {"m.in_reply_to": {"event_id": _own_id(event)}}}
        await self._send(event.channel, "m.room.message", f"reply {_own_id(event)}", content)

    async def _react(self, room: str, message: str, emoji: str) -> str | None:
        """The event's id; the same one again where it was sent before."""
        content = {"m.relates_to": {"rel_type": "m.annotation", "event_id": message, "key": emoji}}
        return name_at(await self._send(room, "m.reaction", f"{emoji} {message}", content), "event_id")

    async def _send(self, room: str, kind: str, transaction: str, content: dict[str, Any]) -> Any:
        return await self._call("PUT", f"rooms/{_in_path(room)}/send/{kind}/{_in_path(transaction)}", content)

    async def _call(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        """The answer's JSON, by the first agent that is in the room; None where there is none, which the log says."""
        reason = "webhooks.matrix.agents names nobody"
        for agent in self._section.agents:
            url = f"{self._section.homeserver.rstrip('/')}/_matrix/client/v3/{path}"
            try:
                async with self._http.request(
                    method, url, params={"user_id": agent}, json=content, headers=self._headers, timeout=TIMEOUT
                ) as response:
                    answer = loads(await body_of(response, MOST_BYTES))
                    if response.status == 200:
                        return answer
                    reason = f"{response.status} {value_at(answer, 'errcode')}"
            except (aiohttp.ClientError, TimeoutError, ValueError, BackendBroke) as error:
                reason = type(error).__name__
        if reason not in self._failures:
            self._failures.add(reason)
            log.warning(
                "the Matrix homeserver did not do it; said once", reason=reason, homeserver=self._section.homeserver
            )
        return None


def _is_rated(outcome: EventDone) -> bool:
    return outcome.result == "command" and (parse(outcome.event.text).rates or outcome.event.undoes != "")


def _own_id(event: PlatformEvent) -> str:
    """The event's own id; before a command's stands its room's, and before an edit's the first one's too."""
    return event.event_id.rpartition(" ")[2]


def _in_path(id: str) -> str:
    return quote(id, safe="")
