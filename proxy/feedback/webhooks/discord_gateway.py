"""Discord's Gateway: reactions, which do not come by webhook.

Owns one WebSocket to Discord: identify, heartbeat, resume where it was, reconnect with a growing pause. What a reaction
leads to is `dispatch`'s. A connection that Discord closes for good (a wrong token, an intent that was not granted) ends
the listener. The log says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import orjson
import structlog

from proxy.core.errors import BackendBroke
from proxy.core.json_edit import loads
from proxy.core.upstream import body_of
from proxy.feedback.webhooks.base import EventKind, PlatformEvent, name_at, value_at

log = structlog.get_logger()

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID_SESSION, HELLO, ACK = 0, 1, 2, 6, 7, 9, 10, 11
INTENTS: Final = 1 << 10 | 1 << 13  # reactions in servers, and in direct messages
QUERY: Final = "/?v=10&encoding=json"
MOST_BYTES: Final = 1 << 20  # of an answer of its API
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 120.0
HELLO_S: Final = 20.0  # how long Discord may take for its first word
FATAL: Final = {
    4004: "the bot token is wrong (webhooks.discord.bot_token)",
    4010: "the shard is wrong",
    4011: "the bot is in so many servers that it needs shards, which rlproxy does not do",
    4012: "Discord no longer speaks this version of its Gateway",
    4013: "the intents are wrong",
    4014: "an intent was not granted; see the Bot page of the application",
}
NO_RESUME: Final = (1000, 1001, 4007, 4009)  # after these a session is over
_KINDS: Final[dict[str, EventKind]] = {
    "MESSAGE_REACTION_ADD": "reaction", "MESSAGE_REACTION_REMOVE": "retraction",
    "MESSAGE_REACTION_REMOVE_ALL": "clearing", "MESSAGE_REACTION_REMOVE_EMOJI": "clearing",
}  # fmt: skip
SUPER: Final = " super"  # after the emoji, in a slot

Listener = Callable[[PlatformEvent], object]


class GatewayRefused(Exception):
    """Discord will not have us, now or later."""


class Gateway:
    def __init__(self, http: aiohttp.ClientSession, api: str, token: str, listener: Listener) -> None:
        self._http = http
        self._api = api
        self._token = token
        self._listener = listener
        self._session: str | None = None  # with these three a broken connection goes on where it was
        self._resume_url: str | None = None
        self._seq: int | None = None
        self._acked = True
        self._ready = False
        self._closed_by_us = False  # we closed it: what Discord answers to that says nothing of the session

    async def run(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            self._ready = self._closed_by_us = False
            try:
                await self._connection()
            except GatewayRefused as error:
                log.error(f"no longer listening to Discord's reactions: {error}; set it right and start again")
                return
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, BackendBroke) as error:
                log.warning("the connection to Discord broke", error=repr(error))
            pause = FIRST_PAUSE_S if self._ready else min(pause * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311  so that not all come back at once

    async def _connection(self) -> None:
        """From the first word to the last of one connection."""
        url = (self._resume_url if self._session else None) or await self._address()
        async with self._http.ws_connect(url.rstrip("/") + QUERY, max_msg_size=16 << 20) as ws:
            async with asyncio.timeout(HELLO_S):
                first = await ws.receive()
            if first.type is not aiohttp.WSMsgType.TEXT:
                self._closed(ws.close_code)
                return
            hello = orjson.loads(first.data)
            every = value_at(hello, "d", "heartbeat_interval")
            if not isinstance(every, int) or value_at(hello, "op") != HELLO:
                raise ValueError("Discord did not say hello")
            await self._introduce(ws)
            self._acked = True
            beat = asyncio.create_task(self._beat(ws, every / 1000), name="discord-heartbeat")
            try:
                await self._listen(ws)
            finally:
                beat.cancel()
                with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                    await beat
            self._closed(ws.close_code)

    async def _address(self) -> str:
        async with self._http.get(
            f"{self._api}/gateway/bot",
            headers={"authorization": f"Bot {self._token}", "accept-encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=20),
        ) as response:
            if response.status == 401:
                raise GatewayRefused(FATAL[4004])
            response.raise_for_status()
            url = value_at(loads(await body_of(response, MOST_BYTES)), "url")
            if not isinstance(url, str):
                raise ValueError("Discord did not say where its Gateway is")
            return url

    async def _introduce(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        if self._session is not None:
            resumption = {"token": self._token, "session_id": self._session, "seq": self._seq}
            await self._send(ws, RESUME, resumption)
            return
        properties = {"os": sys.platform, "browser": "rlproxy", "device": "rlproxy"}
        await self._send(ws, IDENTIFY, {"token": self._token, "intents": INTENTS, "properties": properties})

    async def _beat(self, ws: aiohttp.ClientWebSocketResponse, every: float) -> None:
        """A sign of life at Discord's pace. A connection that does not answer one is given up."""
        await asyncio.sleep(every * random.random())  # noqa: S311  as Discord asks, so that not all beat at once
        while True:
            if not self._acked:
                log.warning("Discord does not answer; connecting again")
                await self._leave(ws)
                return
            self._acked = False
            await self._send(ws, HEARTBEAT, self._seq)
            await asyncio.sleep(every)

    async def _listen(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        async for message in ws:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            payload = orjson.loads(message.data)
            op, data = value_at(payload, "op"), value_at(payload, "d")
            if isinstance(seq := value_at(payload, "s"), int):
                self._seq = seq
            if op == DISPATCH:
                await self._dispatched(value_at(payload, "t"), data)
            elif op == HEARTBEAT:
                await self._send(ws, HEARTBEAT, self._seq)
            elif op == ACK:
                self._acked = True
            elif op in (RECONNECT, INVALID_SESSION):
                if op == INVALID_SESSION and data is not True:
                    self._forget()
                await self._leave(ws)

    async def _dispatched(self, kind: Any, data: Any) -> None:
        if kind in ("READY", "RESUMED"):
            self._ready = True
        if kind == "READY":
            self._session = name_at(data, "session_id")
            url = value_at(data, "resume_gateway_url")
            self._resume_url = url if isinstance(url, str) else None
        elif (event := reaction(str(kind), data, f"{self._session}.{self._seq}", time.time())) is not None:
            self._listener(event)

    async def _leave(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._closed_by_us = True
        await ws.close(code=4000)  # not 1000, which would end the session

    def _closed(self, code: int | None) -> None:
        if self._closed_by_us:
            return
        if code in FATAL:
            raise GatewayRefused(FATAL[code])
        if code in NO_RESUME:
            self._forget()
        log.info("Discord closed the connection", code=code)

    def _forget(self) -> None:
        self._session = self._resume_url = self._seq = None

    async def _send(self, ws: aiohttp.ClientWebSocketResponse, op: int, data: Any) -> None:
        await ws.send_str(orjson.dumps({"op": op, "d": data}).decode())


def reaction(kind: str, data: Any, event_id: str, now: float) -> PlatformEvent | None:
    """Read a MESSAGE_REACTION_…; it carries neither a time nor an id of its own."""
    channel, message, meaning = name_at(data, "channel_id"), name_at(data, "message_id"), _KINDS.get(kind)
    emoji = name_at(data, "emoji", "name") or name_at(data, "emoji", "id") or ""  # a deleted custom one has no name
    slot = name_at(data, "emoji", "id") or emoji
    if meaning == "clearing" and channel and message and (emoji or kind.endswith("ALL")):
        return PlatformEvent("discord", event_id, "", channel, message, meaning, "", now, slot=slot)
    person = name_at(data, "user_id")
    if meaning is None or meaning == "clearing" or not (person and channel and message and emoji):
        return None
    if value_at(data, "burst") is True:  # one may have a super reaction beside a plain one
        slot += SUPER
    return PlatformEvent("discord", event_id, person, channel, message, meaning, emoji, now, slot=slot)
