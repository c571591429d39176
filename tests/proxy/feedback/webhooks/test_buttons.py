"""Buttons under answers, from the link to the rating that takes them away, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from config.webhooks import DiscordSection, SlackSection, TelegramSection
from proxy.core.redirects import refuse_all
from proxy.feedback.webhooks.buttons import SlackButtons, TelegramButtons
from scripts.fakes.platforms.buttons import SLACK, TELEGRAM, FakeButtons
from scripts.fakes.platforms.chat_platforms import FakeChatPlatforms
from scripts.fakes.platforms.discord_gateway import FakeGateway
from scripts.harness import signing
from scripts.harness.in_process import Proxy
from tests.harness.chats import Chats, settings_of_platforms

PLACES = {"slack": ("C1", "1700000000.000100"), "discord": ("60", "80"), "telegram": ("-100", "42")}
SHOWN = {"slack": ["+1", "-1"], "discord": ["👍", "👎"], "telegram": ["👍", "👎"]}


class Tapped(Chats):
    fake: FakeButtons
    gateway: FakeGateway

    def under(self, platform: str, message: str | None = None) -> list[str]:
        channel, first = PLACES[platform]
        return self.fake.emoji.get((platform, channel, message or first), [])

    async def until_under(self, platform: str, expected: list[str]) -> None:
        async with asyncio.timeout(20):
            while self.under(platform) != expected:
                await asyncio.sleep(0.01)

    async def posted(self, platform: str) -> str:
        """A completion that a message of that platform shows, with its buttons."""
        id = await self.completion()
        assert await self.link(platform, *PLACES[platform], id) == 201
        await self.until_under(platform, SHOWN[platform])
        return id

    async def until_rated(self, id: str, expected: dict[str, float]) -> None:
        async with asyncio.timeout(20):
            while await self.values(id) != expected:
                await asyncio.sleep(0.01)


@pytest.fixture
async def tapped(proxy: Proxy, unhurried: None) -> AsyncIterator[Tapped]:
    platforms = FakeChatPlatforms()
    chats = Tapped(proxy, platforms)
    chats.gateway, chats.fake = FakeGateway(platforms), FakeButtons()
    platforms.extra += chats.fake.routes()
    await platforms.start()
    proxy.flags |= settings_of_platforms(platforms.url)
    proxy.flags |= {f"webhooks.{name}.buttons": True for name in PLACES} | {
        "webhooks.discord.gateway": True, "webhooks.telegram.bot_token": TELEGRAM,
        "webhooks.telegram.api": f"{platforms.url}/telegram",
    }  # fmt: skip
    await proxy.stop()
    await proxy.start()
    async with asyncio.timeout(20):
        await chats.gateway.connected.wait()
    yield chats
    await proxy.stop()
    await platforms.stop()
    await proxy.start()  # the fixture stops it


async def test_a_tap_on_slack(tapped: Tapped) -> None:
    id = await tapped.posted("slack")
    own = signing.slack_reaction("+1", id="E0", person="UBOT", timestamp=time.time())
    assert (await tapped.send("slack", own))[0] == 200  # Slack tells of the bot's own, too
    assert await tapped.values(id) == {} and tapped.under("slack") == SHOWN["slack"]
    await tapped.send("slack", signing.slack_reaction("-1", id="E1", timestamp=time.time()))
    assert await tapped.values(id) == {"ann": -1.0}
    await tapped.until_under("slack", [])


async def test_a_tap_on_discord_where_each_reaction_has_to_wait(tapped: Tapped) -> None:
    id = await tapped.posted("discord")
    assert "You are being rate limited." in tapped.fake.refusals
    reaction = {"user_id": "70", "channel_id": "60", "message_id": "80", "emoji": {"id": None, "name": "👍"}}
    await tapped.gateway.dispatch("MESSAGE_REACTION_ADD", reaction)
    await tapped.until_rated(id, {"ann": 1.0})
    await tapped.until_under("discord", [])


def tap(word: str, *, id: int, person: int = 7, message: int = 42) -> dict[str, Any]:
    shown = {"message_id": message, "date": 1, "chat": {"id": -100, "type": "supergroup"}, "text": "an answer"}
    sender = {"id": person, "is_bot": False, "first_name": "P"}
    query = {"id": f"q{id}", "from": sender, "message": shown, "chat_instance": "1", "data": word}
    return {"update_id": id, "callback_query": query}


async def test_a_tap_on_telegram_is_answered_by_a_toast(tapped: Tapped) -> None:
    id = await tapped.posted("telegram")
    status, toast = await tapped.send("telegram", tap("rl:good", id=1, person=8))
    assert status == 200 and toast["method"] == "answerCallbackQuery" and "somebody else" in toast["text"]
    assert await tapped.values(id) == {} and tapped.under("telegram") == SHOWN["telegram"]
    _, toast = await tapped.send("telegram", tap("rl:bad", id=2))
    assert toast["callback_query_id"] == "q2" and "rated bad" in toast["text"] and len(toast["text"]) <= 200
    assert await tapped.values(id) == {"ann": -1.0}
    await tapped.until_under("telegram", [])


@pytest.mark.parametrize("word", ["rl:train", "rl:", "good", "other:good", "rl:good:more"])
async def test_another_bots_tap_rates_nothing(tapped: Tapped, word: str) -> None:
    id = await tapped.posted("telegram")
    assert await tapped.send("telegram", tap(word, id=1)) == (200, {"results": []})
    assert await tapped.values(id) == {}


async def test_an_answer_has_buttons_once_and_a_side_answer_none(tapped: Tapped) -> None:
    id = await tapped.posted("telegram")
    calls = len(tapped.fake.bodies)
    assert await tapped.link("telegram", "-100", "42", id) == 201  # again
    assert await tapped.link("telegram", "-100", "43", id) == 201  # its second part
    titles = {"x-rl-turn": "side"}
    side = (await tapped.proxy.chat("a title", headers=titles)).headers["x-rl-completion-id"]
    assert await tapped.link("telegram", "-100", "44", side) == 201
    other = await tapped.completion("another")
    assert await tapped.link("telegram", "-100", "45", other) == 201
    async with asyncio.timeout(20):
        while not tapped.under("telegram", "45"):
            await asyncio.sleep(0.01)
    assert [body["message_id"] for body in tapped.fake.bodies[calls:]] == [45]


async def test_without_the_setting_nothing_is_asked_of_a_platform(tapped: Tapped) -> None:
    for name in PLACES:
        tapped.proxy.flags[f"webhooks.{name}.buttons"] = False
    await tapped.proxy.stop()
    await tapped.proxy.start()
    id = await tapped.completion()
    for name, place in PLACES.items():
        assert await tapped.link(name, *place, id) == 201
    await tapped.send("slack", signing.slack_reaction("-1", id="E1", timestamp=time.time()))
    assert await tapped.values(id) == {"ann": -1.0}
    assert tapped.fake.emoji == {} and tapped.fake.refusals == []


async def test_what_is_so_already_is_no_failure_and_a_wrong_token_is_logged_once(
    tapped: Tapped, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tapped.platforms.url
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        right = SlackButtons(http, f"{url}/slack", SLACK)
        for act in (right.add, right.add, right.take_away, right.take_away):
            await act("C9", "1.0")
        keyboard = TelegramButtons(http, f"{url}/telegram", TELEGRAM)
        await keyboard.take_away("-100", "99")
        assert "did not take buttons" not in capsys.readouterr().out
        wrong = TelegramButtons(http, f"{url}/telegram", "wrong:secret")
        for _ in range(3):
            await wrong.add("-100", "99")
        log = capsys.readouterr().out
        assert log.count("did not take buttons") == 1 and "secret" not in log
        gone = SlackButtons(http, "http://127.0.0.1:9", SLACK)
        for _ in range(3):
            await gone.add("C9", "1.0")
        assert capsys.readouterr().out.count("did not take buttons") == 1


@pytest.mark.parametrize("section", [SlackSection, TelegramSection, DiscordSection])
def test_buttons_need_a_token(section: Any) -> None:
    with pytest.raises(ValidationError, match=r"bot_token|gateway"):
        section(buttons=True)
    with pytest.raises(ValidationError, match="gateway"):
        DiscordSection(buttons=True, bot_token="t")
