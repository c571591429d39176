"""Discord's Gateway over a real WebSocket: hello, identify, heartbeats, sessions that can be resumed, and bad days.

Faithful to Discord's public pages (Gateway v10): the opcodes, and `s` counting up in a session. Missed events are sent
again after a resume, and close codes tell what is wrong for good.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import WSMsgType, web

from scripts.fakes.platforms.chat_platforms import DISCORD_TOKEN, FakeChatPlatforms


class FakeGateway:
    def __init__(self, platforms: FakeChatPlatforms) -> None:
        """Adds its routes; start `platforms` afterwards."""
        self.platforms = platforms
        platforms.extra += [web.get("/discord/gateway/bot", self._address), web.get("/gateway/", self._socket)]
        self.beat_ms = 60_000
        self.answers_beats = True
        self.refuses: int | None = None  # the close code that an identify meets
        self.unwilling = 0  # so many connections to come are cut at once
        self.frames: list[tuple[int, Any]] = []  # op and d of all that came
        self.connections = 0
        self.log: list[dict[str, Any]] = []  # the events of this session
        self.connected = asyncio.Event()
        self._ws: web.WebSocketResponse | None = None
        self._session = 0

    def ops(self, op: int) -> list[Any]:
        return [data for code, data in self.frames if code == op]

    async def _address(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bot {DISCORD_TOKEN}":
            return web.json_response({"message": "401: Unauthorized", "code": 0}, status=401)
        return web.json_response({"url": self.url, "shards": 1})

    @property
    def url(self) -> str:
        return self.platforms.url.replace("http", "ws") + "/gateway"

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        assert request.query["v"] == "10" and request.query["encoding"] == "json"
        self.connections += 1
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        if self.unwilling > 0:
            self.unwilling -= 1
            await ws.close(code=4000)
            return ws
        await ws.send_json({"op": 10, "d": {"heartbeat_interval": self.beat_ms}, "s": None, "t": None})
        async for message in ws:
            if message.type is WSMsgType.TEXT:
                frame = message.json()
                self.frames.append((frame["op"], frame["d"]))
                await self._answer(ws, frame["op"], frame["d"])
        return ws

    async def _answer(self, ws: web.WebSocketResponse, op: int, data: Any) -> None:
        if op == 1 and self.answers_beats:
            await ws.send_json({"op": 11, "d": None, "s": None, "t": None})
        elif op == 2:
            if self.refuses or data["token"] != DISCORD_TOKEN:
                await ws.close(code=self.refuses or 4004)
                return
            self._session += 1
            self.log = []
            self._ws = ws
            await self.dispatch("READY", {"session_id": f"session-{self._session}", "resume_gateway_url": self.url})
            self.connected.set()
        elif op == 6:
            if data["session_id"] != f"session-{self._session}":
                await ws.send_json({"op": 9, "d": False, "s": None, "t": None})
                return
            self._ws = ws
            for event in self.log:
                if event["s"] > data["seq"]:
                    await ws.send_json(event)
            await self.dispatch("RESUMED", {})
            self.connected.set()

    async def dispatch(self, kind: str, data: Any) -> None:
        event = {"op": 0, "d": data, "s": len(self.log) + 1, "t": kind}
        self.log.append(event)
        if self._ws is not None and not self._ws.closed:
            await self._ws.send_json(event)

    async def react(
        self, emoji: str, *, person: str = "70", message: str = "80", removed: bool = False, burst: bool = False
    ) -> None:
        kind = "MESSAGE_REACTION_REMOVE" if removed else "MESSAGE_REACTION_ADD"
        place = {"channel_id": "60", "message_id": message, "burst": burst, "type": int(burst)}
        await self.dispatch(kind, {"user_id": person, "emoji": {"id": None, "name": emoji}, **place})

    async def clear(self, emoji: str | None = None, *, message: str = "80") -> None:
        """A moderator takes everybody's reactions of an emoji away, or all."""
        place: dict[str, Any] = {"channel_id": "60", "message_id": message}
        if emoji is None:
            await self.dispatch("MESSAGE_REACTION_REMOVE_ALL", place)
        else:
            await self.dispatch("MESSAGE_REACTION_REMOVE_EMOJI", {"emoji": {"id": None, "name": emoji}, **place})

    async def say(self, op: int, data: Any = None) -> None:
        assert self._ws is not None
        await self._ws.send_json({"op": op, "d": data, "s": None, "t": None})

    async def drop(self, code: int | None = None) -> None:
        """End the connection: with a code, or as a cable that was pulled."""
        self.connected.clear()
        ws, self._ws = self._ws, None
        assert ws is not None
        if code is not None:
            await ws.close(code=code)
        elif ws._req is not None and ws._req.transport is not None:
            ws._req.transport.abort()

    def forget_session(self) -> None:
        self._session += 1
