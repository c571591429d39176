"""The calls by which a bot puts buttons under its messages: Slack's, Discord's and Telegram's, over a real socket.

Faithful to their public pages. Slack answers 200 with `ok: false` to what is there already. Discord lets a bot set one
reaction in a quarter of a second, and says when to come again. Telegram refuses a keyboard that changes nothing.
"""

from __future__ import annotations

import json
import time
from typing import Any

from aiohttp import web

SLACK, DISCORD, TELEGRAM = "xoxb-1", "bot.token", "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
PAUSE_S = 0.25
# Of each of Discord's answers: the one reaction is used up. Without `Via` discord.py takes a 429 for a block.
LIMITED = {
    "Via": "1.1 google", "X-RateLimit-Limit": "1", "X-RateLimit-Remaining": "0", "X-RateLimit-Bucket": "b",
    "X-RateLimit-Reset-After": str(PAUSE_S), "X-RateLimit-Reset": "1",
}  # fmt: skip


class FakeButtons:
    def __init__(self) -> None:
        self.emoji: dict[tuple[str, str, str], list[str]] = {}  # by platform, channel, message: emoji, oldest first
        self.refusals: list[str] = []
        self.bodies: list[Any] = []
        self._next_reaction = 0.0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/slack/reactions.{verb}", self._slack),
            web.route("*", "/discord/channels/{channel}/messages/{message}/reactions/{emoji}/@me", self._discord),
            web.post("/telegram/bot{token}/editMessageReplyMarkup", self._telegram),
        ]

    async def _slack(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {SLACK}":
            return self._refused({"ok": False, "error": "invalid_auth"})
        is_json = request.content_type == "application/json"
        body: Any = await request.json() if is_json else await request.post()  # slack_sdk posts a form
        self.bodies.append(dict(body))
        emoji = self.emoji.setdefault(("slack", body["channel"], body["timestamp"]), [])
        if (body["name"] in emoji) == (request.match_info["verb"] == "add"):
            return self._refused({"ok": False, "error": "already_reacted" if body["name"] in emoji else "no_reaction"})
        (emoji.append if request.match_info["verb"] == "add" else emoji.remove)(body["name"])
        return web.json_response({"ok": True})

    async def _discord(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bot {DISCORD}":
            return self._refused({"message": "401: Unauthorized", "code": 0}, 401)
        if (wait_s := self._next_reaction - time.monotonic()) > 0:
            body = {"message": "You are being rate limited.", "retry_after": round(wait_s, 3) + 0.001, "global": False}
            return self._refused(body, 429)
        self._next_reaction = time.monotonic() + PAUSE_S
        path = request.match_info
        emoji = self.emoji.setdefault(("discord", path["channel"], path["message"]), [])
        if request.method == "PUT" and path["emoji"] not in emoji:
            emoji.append(path["emoji"])
        elif request.method == "DELETE":
            if path["emoji"] not in emoji:
                return self._refused({"message": "Unknown Emoji", "code": 10014}, 404)
            emoji.remove(path["emoji"])
        return web.Response(status=204, headers=LIMITED)

    async def _telegram(self, request: web.Request) -> web.Response:
        if request.match_info["token"] != TELEGRAM:
            return self._refused({"ok": False, "error_code": 401, "description": "Unauthorized"}, 401)
        is_json = request.content_type == "application/json"
        body: Any = await request.json() if is_json else dict(await request.post())  # the package posts a form
        if not is_json:
            body |= {"reply_markup": json.loads(body["reply_markup"]), "message_id": int(body["message_id"])}
        self.bodies.append(body | {"chat_id": str(body["chat_id"])})
        message = ("telegram", str(body["chat_id"]), str(body["message_id"]))
        keyboard = [button["text"] for row in body["reply_markup"]["inline_keyboard"] for button in row]
        if self.emoji.get(message, []) == keyboard:
            reason = "Bad Request: message is not modified: specified new message content and reply markup are the same"
            return self._refused({"ok": False, "error_code": 400, "description": reason}, 400)
        self.emoji[message] = keyboard
        chat = {"id": int(body["chat_id"]), "type": "supergroup", "title": "g"}
        result = {"message_id": body["message_id"], "date": int(time.time()), "chat": chat, "text": "an answer"}
        return web.json_response({"ok": True, "result": result})

    def _refused(self, body: dict[str, Any], status: int = 200) -> web.Response:
        self.refusals.append(str(body.get("error") or body.get("description") or body.get("message")))
        return web.json_response(body, status=status, headers=LIMITED if "code" in body or status == 429 else None)
