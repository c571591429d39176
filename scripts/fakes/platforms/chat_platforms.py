"""Slack and Discord, as far as rlproxy asks them: the text of a message, and Discord's Gateway.

Faithful to their public pages: `conversations.history` leaves out what is in a thread, `conversations.replies` has it;
an error is a 200 with `ok: false`. Discord's is a plain GET with the bot's token.
"""

from __future__ import annotations

from aiohttp import web

SLACK_TOKEN, DISCORD_TOKEN = "xoxb-1", "bot.token"


class FakeChatPlatforms:
    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], str] = {}  # (channel, id) -> text
        self.in_threads: set[str] = set()  # ids of those that history leaves out
        self.asked: list[str] = []
        self.broken = False
        self.url = ""
        self.extra: list[web.RouteDef] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([
            *(
                route(f"/slack/conversations.{method}", self._slack)
                for route in (web.get, web.post)
                for method in ("history", "replies")
            ),
            web.get("/discord/channels/{channel}/messages/{id}", self._discord),
            *self.extra,
        ])  # fmt: skip
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _slack(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.broken:
            return web.Response(status=500, text="oops")
        if request.headers.get("authorization") != f"Bearer {SLACK_TOKEN}":
            return web.json_response({"ok": False, "error": "invalid_auth"})
        fields = request.query if request.method == "GET" else await request.post()  # slack_sdk posts a form
        channel, latest = str(fields["channel"]), str(fields["latest"])
        replies = request.path.endswith("replies")
        if replies and fields.get("ts") not in self.in_threads:
            return web.json_response({"ok": False, "error": "thread_not_found"})
        messages = [
            {"type": "message", "ts": ts, "text": text}
            for (place, ts), text in sorted(self.messages.items(), reverse=True)
            if place == channel and ts <= latest and (ts in self.in_threads) == replies
        ]
        return web.json_response({"ok": True, "messages": messages[: int(str(fields["limit"]))], "has_more": False})

    async def _discord(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.headers.get("authorization") != f"Bot {DISCORD_TOKEN}":
            return web.json_response({"message": "401: Unauthorized", "code": 0}, status=401)
        text = self.messages.get((request.match_info["channel"], request.match_info["id"]))
        if text is None:
            return web.json_response({"message": "Unknown Message", "code": 10008}, status=404)
        return web.json_response({"id": request.match_info["id"], "content": text, "type": 0})
