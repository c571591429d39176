"""Telegram's Bot API as far as OpenClaw's own channel uses it: long polling, messages, reactions.

Owns the people of one chat, who speak and react; keeps what the bot sends. Every other method is answered `true`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {"id": 110201543, "is_bot": True, "first_name": "Claw", "username": "claw_bot", "can_join_groups": True}
GROUP = {"id": -100500, "type": "supergroup", "title": "Town"}


class FakeTelegram:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.called: list[str] = []
        self._updates: list[dict[str, Any]] = []
        self._next = 1
        self._message = 100
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", f"/bot{TOKEN}/{{method}}", self._method)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    # What people do

    async def says(self, person: int, text: str, chat: dict[str, Any] | None = None) -> None:
        entities = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}] if text[:1] == "/" else []
        message = {
            "message_id": self._new(), "date": int(time.time()), "chat": chat or _private(person),
            "from": _user(person), "text": text, "entities": entities,
        }  # fmt: skip
        await self._happens("message", message)

    async def reacts(
        self, person: int, message_id: int, emoji: str, chat: dict[str, Any] | None = None, old_emoji: str | None = None
    ) -> None:
        reaction = {
            "chat": chat or _private(person), "message_id": message_id, "user": _user(person), "date": int(time.time()),
            "old_reaction": [{"type": "emoji", "emoji": old_emoji}] if old_emoji else [],
            "new_reaction": [{"type": "emoji", "emoji": emoji}],
        }  # fmt: skip
        await self._happens("message_reaction", reaction)

    async def answer(self, number: int, within_s: float) -> dict[str, Any]:
        """The bot's message of that number, counted from 1. An edit of one changes it in place."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.sent) >= number)
        return self.sent[number - 1]

    async def polled(self, within_s: float) -> None:
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: "getUpdates" in self.called)

    # The API

    async def _method(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        fields = await _fields(request)
        async with self._changed:
            self.called.append(method)
            self._changed.notify_all()
        return web.json_response({"ok": True, "result": await self._result(method, fields)})

    async def _result(self, method: str, fields: dict[str, Any]) -> Any:
        if method == "getMe":
            return BOT
        if method == "getUpdates":
            return await self._poll(int(fields.get("offset") or 0), float(fields.get("timeout") or 0))
        if method == "getWebhookInfo":
            return {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
        if method == "sendMessage":
            return await self._send(fields)
        if method == "editMessageText":
            (message,) = [sent for sent in self.sent if sent["message_id"] == int(fields["message_id"])]
            message["text"] = fields["text"]
            return message
        if method == "getChat":
            return {"id": int(fields["chat_id"]), "type": "private", "accent_color_id": 0, "max_reaction_count": 11}
        return [] if method == "getMyCommands" else True

    async def _poll(self, offset: int, timeout_s: float) -> list[dict[str, Any]]:
        self._updates = [update for update in self._updates if update["update_id"] >= offset]
        try:
            async with asyncio.timeout(min(timeout_s, 2.0)), self._changed:
                await self._changed.wait_for(lambda: bool(self._updates))
        except TimeoutError:
            return []
        return self._updates

    async def _send(self, fields: dict[str, Any]) -> dict[str, Any]:
        chat = int(fields["chat_id"])
        message = {
            "message_id": self._new(), "date": int(time.time()), "from": BOT, "text": fields["text"],
            "chat": GROUP if chat == GROUP["id"] else _private(chat),
        }  # fmt: skip
        async with self._changed:
            self.sent.append(message)
            self._changed.notify_all()
        return message

    async def _happens(self, kind: str, payload: dict[str, Any]) -> None:
        async with self._changed:
            self._updates.append({"update_id": self._next, kind: payload})
            self._next += 1
            self._changed.notify_all()

    def _new(self) -> int:
        self._message += 1
        return self._message


async def _fields(request: web.Request) -> dict[str, Any]:
    if request.content_type == "application/json":
        return dict(await request.json())
    return {**request.query, **(await request.post())}


def _user(person: int) -> dict[str, Any]:
    return {"id": person, "is_bot": False, "first_name": f"Person {person}", "username": f"person{person}"}


def _private(person: int) -> dict[str, Any]:
    return {"id": person, "type": "private", "first_name": f"Person {person}"}
