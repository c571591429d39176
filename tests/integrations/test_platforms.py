"""Slack, Telegram, Discord and WhatsApp by their makers' packages, which make, sign and read what goes over the wire.

Real: the packages (WhatsApp has none of its maker's; pywa is others'), the proxy, the store. Fake: the platforms' APIs.
`make test-platforms` installs the packages and runs these.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.feedback.webhooks import discord_gateway
from proxy.feedback.webhooks.buttons import BY_PLATFORM
from scripts.fakes.platforms import buttons as fakes
from scripts.fakes.platforms.chat_platforms import DISCORD_TOKEN, SLACK_TOKEN, FakeChatPlatforms
from scripts.fakes.platforms.discord_gateway import FakeGateway
from scripts.harness import signing
from tests.harness.chats import Chats

pytestmark = [pytest.mark.platforms, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlproxy/venvs/platforms/bin/python"
GUIDE, LAB = ROOT / "docs/guides/rating-from-chat.md", ROOT / "docs/lab/rating-from-chat.md"
# By platform: the channel, the linked message, and one of the channel's newest answer.
PLACES = {
    "slack": ("C1", "1700000000.000100", "1700000000.000300"), "telegram": ("-100", "42", "43"),
    "discord": ("60", "80", "81"), "whatsapp": ("491701", "wamid.M", "wamid.N"),
}  # fmt: skip
NAMED = "DE.134"  # a person on WhatsApp who shows no number


async def ask(platform: str, **given: Any) -> list[Any]:
    """What that platform's packages say, in their own environment."""
    module = f"tests.integrations.makers.{platform}_steps"
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-m", module, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    out, err = await process.communicate(json.dumps(given).encode())
    assert process.returncode == 0, err.decode()[-3000:]
    return [json.loads(line) for line in out.splitlines()]


class Stage:
    """A proxy in which two answers are linked, and the steps of a platform."""

    def __init__(self, chats: Chats, platform: str) -> None:
        self.chats, self.platform = chats, platform
        self.answers: list[dict[str, Any]] = []
        self.gateway: FakeGateway | None = None

    async def start(self) -> list[Any]:
        channel, linked, newest = PLACES[self.platform]
        self.ids = [await self.chats.completion("one"), await self.chats.completion("two")]
        for message, id in zip((linked, newest), self.ids, strict=True):
            place = NAMED if message == "wamid.N" else channel
            assert await self.chats.link(self.platform, place, message, id) == 201
        return await ask(
            self.platform, act="steps", now=time.time(), slack_secret=signing.SLACK_SECRET,
            telegram_secret=signing.TELEGRAM_SECRET, discord_seed=signing.DISCORD_KEY.encode().hex(),
            whatsapp_secret=signing.WHATSAPP_SECRET, completion=self.ids[0],
        )  # fmt: skip

    async def values(self) -> list[float | None]:
        return [(await self.chats.values(id)).get("ann") for id in self.ids]

    async def raters(self) -> set[str]:
        return {rater for id in self.ids for rater in await self.chats.values(id)}

    async def take(self, step: Any) -> None:
        body = base64.b64decode(step["body"])
        if step["gateway"]:
            assert self.gateway is not None
            await self.gateway.dispatch(step["gateway"], json.loads(body))
            await self.settled(step)
            return
        url = f"/rl/webhooks/{self.platform}"
        async with self.chats.proxy.http.post(url, headers=step["headers"], data=body) as response:
            text = await response.text()
            assert response.status == step["status"], (step["name"], text)
        assert await self.values() == step["values"], (step["name"], text)
        if step["kind"]:
            self.answers.append({"kind": step["kind"], "request": body.decode(), "text": text})

    async def settled(self, step: Any) -> None:
        """Nothing answers a Gateway's event: its effect is waited for, and that nothing follows."""
        async with asyncio.timeout(20):
            while await self.values() != step["values"]:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert await self.values() == step["values"], step["name"]


@pytest.mark.parametrize("platform", list(PLACES))
async def test_ratings_follow_what_the_makers_packages_send(
    chats: Chats, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.feedback.webhooks.resolve.WAIT_S", 0.1)  # for links that never come
    stage = Stage(chats, platform)
    chats.proxy.flags["webhooks.whatsapp.raters"] = {"491701": "ann", NAMED: "ann"}
    if platform == "discord":
        stage.gateway = FakeGateway(chats.platforms)
        await chats.platforms.stop()
        await chats.platforms.start()
        chats.proxy.flags |= {
            "webhooks.discord.api": chats.platforms.url + "/discord", "webhooks.discord.gateway": True,
        }  # fmt: skip
    await chats.proxy.stop()
    await chats.proxy.start()
    steps = await stage.start()
    if stage.gateway is not None:
        async with asyncio.timeout(20):
            await stage.gateway.connected.wait()
        (introduced,) = stage.gateway.ops(discord_gateway.IDENTIFY)
        names = ("IDENTIFY", "HEARTBEAT", "RESUME", "RECONNECT", "HELLO", "DISPATCH", "INVALIDATE_SESSION")
        codes = {name: getattr(discord_gateway, name.replace("INVALIDATE", "INVALID")) for name in names}
        buttons = re.search(r'```json\n(\{"components".*?)\n```', GUIDE.read_text(), re.DOTALL)
        assert introduced["token"] == DISCORD_TOKEN and buttons is not None
        stage.answers += [
            {"kind": "identify", "text": json.dumps(introduced)}, {"kind": "components", "text": buttons[1]},
            {"kind": "opcodes", "text": json.dumps({**codes, "HEARTBEAT_ACK": discord_gateway.ACK})},
        ]  # fmt: skip
    for step in steps:
        await stage.take(step)
    assert await stage.raters() <= {"ann"}
    if stage.answers:
        await ask(platform, act="answers", answers=stage.answers)
    row = f"| {platform.capitalize().replace('app', 'App')} | {len(steps)} | {len(stage.answers)} |"
    assert row in LAB.read_text(), f"docs/lab/rating-from-chat.md has another count than {row}"


async def test_slacks_own_client_gets_the_texts_that_rlproxy_asks_for(chats: Chats) -> None:
    _, linked, _ = PLACES["slack"]
    thread = "1700000000.000200"
    chats.platforms.messages |= {("C1", linked): "You said: one", ("C1", thread): "You said: two"}
    chats.platforms.in_threads.add(thread)
    (texts,) = await ask("slack", act="texts", url=chats.platforms.url, token=SLACK_TOKEN)
    assert texts == {linked: "You said: one", thread: "You said: two"}
    theirs, chats.platforms.asked = chats.platforms.asked, []
    ids = [await chats.completion(text, session="C1") for text in ("one", "two")]
    for n, ts in enumerate((linked, thread)):
        await chats.send("slack", signing.slack_reaction(id=f"E{n}", ts=ts, timestamp=time.time()))
    assert [await chats.values(id) for id in ids] == [{"ann": 1.0}] * 2
    assert set(chats.platforms.asked) == set(theirs)


@pytest.mark.parametrize("platform", ["slack", "telegram", "discord"])
async def test_the_makers_own_clients_put_the_buttons_that_rlproxy_puts(platform: str) -> None:
    token = {"slack": fakes.SLACK, "telegram": fakes.TELEGRAM, "discord": fakes.DISCORD}[platform]
    seen = []
    for is_ours in (False, True):
        platforms, fake = FakeChatPlatforms(), fakes.FakeButtons()
        platforms.extra += fake.routes()
        await platforms.start()
        if is_ours:
            async with aiohttp.ClientSession() as http:
                await BY_PLATFORM[platform](http, f"{platforms.url}/{platform}", token).add(*PLACES[platform][:2])
        else:
            await ask(platform, act="buttons", url=platforms.url, token=token)
        await platforms.stop()
        seen.append((fake.emoji, fake.bodies))
    assert seen[0] == seen[1] and len(seen[0][0][(platform, *PLACES[platform][:2])]) == 2
