"""A proxy with chat platforms around it, and what a platform sends to it."""

from __future__ import annotations

import json
import time
from typing import Any

from scripts.fakes.platforms.chat_platforms import DISCORD_TOKEN, SLACK_TOKEN, FakeChatPlatforms
from scripts.harness import signing
from scripts.harness.in_process import Proxy

MATRIX_TOKEN = "the homeserver's token"


class Chats:
    """A proxy, and what a platform would send to it."""

    def __init__(self, proxy: Proxy, platforms: FakeChatPlatforms) -> None:
        self.proxy = proxy
        self.platforms = platforms

    @property
    def store(self) -> Any:
        return self.proxy.store

    async def completion(self, said: str = "hello", *, user: str | None = None, session: str | None = None) -> str:
        headers = {key: value for key, value in (("x-rl-user", user), ("x-rl-session", session)) if value}
        return (await self.proxy.chat(said, headers=headers)).headers["x-rl-completion-id"]

    async def link(self, platform: str, channel: str, message: str, completion: str, **more: Any) -> int:
        body = {"platform": platform, "channel": channel, "message_id": message, "completion_id": completion, **more}
        async with self.proxy.http.post("/rl/links", json=body) as response:
            return response.status

    async def send(self, platform: str, body: Any, **more: Any) -> tuple[int, Any]:
        """Signed now, by the platform's own library."""
        sign = signing.signed if platform == "openclaw" else getattr(signing, platform)
        headers, raw = sign(body, time.time(), **more)
        return await self.post(platform, headers, raw)

    async def post(self, platform: str, headers: dict[str, str], raw: bytes) -> tuple[int, Any]:
        async with self.proxy.http.post(f"/rl/webhooks/{platform}", headers=headers, data=raw) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def values(self, completion: str) -> dict[str, float]:
        """The live ratings, by rater."""
        return {one.rater: one.value for one in await self.store.ratings.history(completion) if one.live}

    async def counted(self, route: str, result: str) -> float:
        async with self.proxy.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        head = f'rlproxy_webhook_events_total{{result="{result}",route="{route}"}} '
        return next((float(line.removeprefix(head)) for line in lines if line.startswith(head)), 0.0)


def settings_of_platforms(url: str) -> dict[str, Any]:
    """Every platform configured, with its own API at this address."""
    return {
        "webhooks.slack.signing_secret": signing.SLACK_SECRET, "webhooks.slack.bot_token": SLACK_TOKEN,
        "webhooks.slack.api": url + "/slack", "webhooks.slack.raters": {"U1": "ann"},
        "webhooks.slack.admins": ["UADMIN"],
        "webhooks.telegram.secret_token": signing.TELEGRAM_SECRET, "webhooks.telegram.raters": {"7": "ann"},
        "webhooks.telegram.admins": ["9"],
        "webhooks.discord.public_key": signing.DISCORD_PUBLIC, "webhooks.discord.raters": {"70": "ann"},
        "webhooks.discord.bot_token": DISCORD_TOKEN, "webhooks.discord.api": url + "/discord",
        "webhooks.whatsapp.app_secret": signing.WHATSAPP_SECRET,
        "webhooks.whatsapp.verify_token": signing.WHATSAPP_TOKEN, "webhooks.whatsapp.raters": {"491701": "ann"},
        "webhooks.signed.secret": signing.SIGNED_SECRET,
        "webhooks.signed.raters": dict.fromkeys(("p1", "mattermost:p1", "matrix:p1"), "ann"),
        "webhooks.openclaw.secret": signing.OPENCLAW_SECRET,
        "webhooks.matrix.hs_token": MATRIX_TOKEN, "webhooks.matrix.agents": ["@agent:home"],
        "webhooks.matrix.raters": {"@bob:home": "bob"},
    }  # fmt: skip
