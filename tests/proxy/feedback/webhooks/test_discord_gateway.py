"""Reactions on Discord, over a connection that breaks in every way that Discord's pages name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.feedback.webhooks.discord_gateway import reaction
from scripts.fakes.platforms.chat_platforms import DISCORD_TOKEN, FakeChatPlatforms
from scripts.fakes.platforms.discord_gateway import FakeGateway
from scripts.harness.in_process import Proxy
from tests.harness.chats import Chats

IDENTIFY, HEARTBEAT, RESUME = 2, 1, 6


class Listening(Chats):
    gateway: FakeGateway


@pytest.fixture
async def listening(proxy: Proxy, unhurried: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listening]:
    monkeypatch.setattr("proxy.feedback.webhooks.discord_gateway.FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr("proxy.feedback.webhooks.discord_gateway.LONGEST_PAUSE_S", 0.2)
    platforms = FakeChatPlatforms()
    chats = Listening(proxy, platforms)
    chats.gateway = FakeGateway(platforms)
    await platforms.start()
    proxy.flags |= {
        "webhooks.discord.bot_token": DISCORD_TOKEN, "webhooks.discord.api": platforms.url + "/discord",
        "webhooks.discord.gateway": True, "webhooks.discord.raters": {"70": "ann"},
    }  # fmt: skip
    await proxy.stop()
    yield chats
    await proxy.stop()
    await platforms.stop()
    await proxy.start()  # the fixture stops it


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def rated(chats: Chats, id: str, wanted: dict[str, float]) -> None:
    async with asyncio.timeout(20):
        while await chats.values(id) != wanted:
            await asyncio.sleep(0.01)


async def until_counted(chats: Chats, result: str, count: int) -> None:
    async with asyncio.timeout(20):
        while await chats.counted("discord", result) < count:
            await asyncio.sleep(0.01)


async def ready(chats: Listening) -> str:
    await chats.proxy.start()
    id = await chats.completion()
    await chats.link("discord", "60", "80", id)
    await asyncio.wait_for(chats.gateway.connected.wait(), 20)
    return id


async def test_reactions_rate_change_and_are_taken_back(listening: Listening) -> None:
    id = await ready(listening)
    (introduced,) = listening.gateway.ops(IDENTIFY)
    assert introduced["token"] == DISCORD_TOKEN and introduced["intents"] == 1 << 10 | 1 << 13
    await listening.gateway.react("👍")
    await rated(listening, id, {"ann": 1.0})
    await listening.gateway.react("👎")
    await rated(listening, id, {"ann": -1.0})
    await listening.gateway.react("👍", person="71")
    await listening.gateway.react("👎", removed=True)
    await listening.gateway.react("👍", removed=True)
    await rated(listening, id, {})
    assert await listening.counted("discord", "stranger") == 1


async def test_a_super_reaction_is_another_one_beside_the_plain(listening: Listening) -> None:
    id = await ready(listening)
    await listening.gateway.react("👍")
    await rated(listening, id, {"ann": 1.0})
    await listening.gateway.react("👍", burst=True)
    await listening.gateway.react("👍", burst=True, removed=True)
    await until_counted(listening, "same", 2)
    assert await listening.values(id) == {"ann": 1.0}
    await listening.gateway.react("👍", removed=True)
    await rated(listening, id, {})


@pytest.mark.parametrize(("emoji", "left"), [(None, {}), ("👍", {"bob": -1.0}), ("🎉", {"ann": 1.0, "bob": -1.0})])
async def test_a_moderator_takes_reactions_away(
    listening: Listening, emoji: str | None, left: dict[str, float]
) -> None:
    listening.proxy.flags["webhooks.discord.raters"] = {"70": "ann", "71": "bob"}
    id = await ready(listening)
    other = await listening.completion("other")
    await listening.link("discord", "60", "81", other)
    await listening.gateway.react("👍", message="81")
    await listening.gateway.react("👍")
    await listening.gateway.react("👎", person="71")
    await rated(listening, id, {"ann": 1.0, "bob": -1.0})
    await rated(listening, other, {"ann": 1.0})
    await listening.gateway.clear(emoji)
    await until_counted(listening, "ignored" if emoji == "🎉" else "retracted", 1)
    assert await listening.values(id) == left
    assert await listening.values(other) == {"ann": 1.0}
    await listening.gateway.react("🔥")
    await rated(listening, id, left | {"ann": 1.0})


async def test_a_message_without_a_link_is_known_by_its_text(listening: Listening) -> None:
    await ready(listening)
    id = await listening.completion("two")
    listening.platforms.messages["60", "90"] = "You said: **two**"
    await listening.gateway.react("👍", message="90")
    await rated(listening, id, {"ann": 1.0})


@pytest.mark.parametrize("how", ["cable", "reconnect", "4000", "invalid but resumable"])
async def test_a_broken_connection_goes_on_where_it_was(listening: Listening, how: str) -> None:
    id = await ready(listening)
    gateway = listening.gateway
    gateway.connected.clear()
    if how == "cable":
        await gateway.drop()
    elif how == "4000":
        await gateway.drop(4000)
    else:
        await gateway.say(7 if how == "reconnect" else 9, True)
        await until(lambda: gateway.connections == 2)
    await gateway.react("👎")  # while nobody listened, or just after
    await asyncio.wait_for(gateway.connected.wait(), 20)
    await rated(listening, id, {"ann": -1.0})
    assert len(gateway.ops(IDENTIFY)) == 1
    assert gateway.ops(RESUME)[0]["session_id"] == "session-1"
    assert len(await listening.store.ratings.history(id)) == 1


@pytest.mark.parametrize("how", ["invalid session", "session gone", "4009"])
async def test_a_session_that_is_over_begins_anew(listening: Listening, how: str) -> None:
    id = await ready(listening)
    gateway = listening.gateway
    gateway.connected.clear()
    if how == "invalid session":
        await gateway.say(9, False)
    elif how == "session gone":
        gateway.forget_session()
        await gateway.drop()
    else:
        await gateway.drop(4009)
    await asyncio.wait_for(gateway.connected.wait(), 20)
    await gateway.react("👍")
    await rated(listening, id, {"ann": 1.0})
    assert len(gateway.ops(IDENTIFY)) == 2


async def test_a_server_that_does_not_answer_is_left(listening: Listening) -> None:
    gateway = listening.gateway
    gateway.beat_ms, gateway.answers_beats = 30, False
    await ready(listening)
    await until(lambda: gateway.connections >= 2)
    gateway.answers_beats = True
    await until(lambda: gateway.ops(RESUME) and len(gateway.ops(HEARTBEAT)) > 3)
    assert isinstance(gateway.ops(HEARTBEAT)[-1], int)  # the number of the last event


async def test_it_tries_again_until_discord_is_there(listening: Listening) -> None:
    listening.gateway.unwilling = 3
    id = await ready(listening)
    assert listening.gateway.connections == 4
    await listening.gateway.react("👍")
    await rated(listening, id, {"ann": 1.0})


@pytest.mark.parametrize("code", [4004, 4014])
async def test_what_is_wrong_for_good_is_said_and_left_alone(
    listening: Listening, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    listening.gateway.refuses = code
    await listening.proxy.start()
    await until(lambda: listening.gateway.ops(IDENTIFY))
    said = ""
    async with asyncio.timeout(20):
        while "no longer listening" not in said:
            await asyncio.sleep(0.02)
            said += "".join(capfd.readouterr())
    assert listening.gateway.connections == 1


async def test_the_proxy_works_without_discord(listening: Listening) -> None:
    listening.proxy.flags["webhooks.discord.api"] = "http://127.0.0.1:9"
    await listening.proxy.start()
    assert await listening.completion()


anything = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["emoji", "name", "id"]), inner),
    max_leaves=6,
)


REACTIONS = [f"MESSAGE_REACTION_{what}" for what in ("ADD", "REMOVE", "REMOVE_ALL", "REMOVE_EMOJI")]


@given(st.sampled_from([*REACTIONS, "TYPING_START"]), st.data())
def test_any_event_is_a_reaction_or_none(kind: str, data: st.DataObject) -> None:
    good: dict[str, Any] = {"user_id": "1", "channel_id": "2", "message_id": "3", "emoji": {"id": None, "name": "👍"}}
    good[data.draw(st.sampled_from(sorted(good)))] = data.draw(anything)
    found = reaction(kind, good, "s.1", 5.0)
    assert found is None or (found.platform == "discord" and kind != "TYPING_START")
    assert found is None or found.text or (found.kind == "clearing" and (found.slot or kind.endswith("ALL")))
