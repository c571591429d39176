"""`/rl …` in the chat: answered here, gone from the history, and always about the reply right above it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from proxy.chat_command import parse
from tests.proxy.conftest import Proxy
from tests.proxy.test_relay import events


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/rl", ("", "")), ("/rl good", ("good", "")), ("  /rl BAD  too long ", ("bad", "too long")),
        ("/rl bad: too\nlong", ("bad", "too\nlong")), ("/rl 4 nice", ("4", "nice")),
    ],
)  # fmt: skip
def test_parse(text: str, command: tuple[str, str]) -> None:
    assert parse(text) == command


async def test_good_rates_the_reply_above(proxy: Proxy) -> None:
    first = await proxy.chat("one")
    reply = (await first.json())["choices"][0]["message"]["content"]
    await proxy.chat("something else")
    said = await proxy.say("one", reply, "/rl good very clear")
    assert "rated good" in said and "very clear" in said
    rating = await proxy.store.live_rating(first.headers["x-rl-completion-id"], "owner")
    assert rating is not None and (rating.value, rating.comment, rating.source) == (1.0, "very clear", "chat")
    assert len(proxy.backend.requests) == 2  # the command itself never got there


async def test_commands_and_answers_leave_the_history(proxy: Proxy) -> None:
    reply = await proxy.say("one")
    answer = await proxy.say("one", reply, "/rl bad")
    await proxy.say("one", reply, "/rl bad", answer, "two")
    sent = [m["content"] for m in proxy.backend.requests[-1]["messages"]]
    assert sent == ["one", reply, "two"]
    # And the conversation is the one without them: rating the next reply finds it.
    second = "You said: two "
    said = await proxy.say("one", reply, "/rl bad", answer, "two", second, "/rl good")
    assert "rated good" in said


async def test_only_commands_is_no_question(proxy: Proxy) -> None:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "/rl good"}, {"role": "assistant", "content": "x"}],
    }
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 400


async def test_the_answer_streams_in_the_same_format(proxy: Proxy) -> None:
    reply = await proxy.say("one")
    response = await proxy.chat("one", reply, "/rl 5", stream=True, stream_options={"include_usage": True})
    got = events(await response.read())
    assert got[-1] == b"[DONE]" and got[-2]["usage"]["total_tokens"] == 0
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in got[:-2])
    assert "rated good" in text and got[-3]["choices"][0]["finish_reason"] == "stop"
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_undo(proxy: Proxy) -> None:
    first = await proxy.chat("one")
    reply = (await first.json())["choices"][0]["message"]["content"]
    assert "nothing to undo" in await proxy.say("one", reply, "/rl undo")
    await proxy.say("one", reply, "/rl bad")
    assert "taken back" in await proxy.say("one", reply, "/rl undo")
    assert await proxy.store.live_rating(first.headers["x-rl-completion-id"], "owner") is None


async def test_what_was_not_captured_is_not_rated(proxy: Proxy) -> None:
    await proxy.say("one")
    assert "nothing was rated" in await proxy.say("one", "an answer from elsewhere", "/rl good")
    assert "nothing was rated" in await proxy.say("/rl good")
    assert (await proxy.store.counts())["good"] == 0


async def test_another_users_reply_is_not_mine_to_rate(proxy: Proxy) -> None:
    reply = await (await proxy.chat("one", headers={"x-rl-user": "ann"})).json()
    text = reply["choices"][0]["message"]["content"]
    said = await (await proxy.chat("one", text, "/rl good", headers={"x-rl-user": "bob"})).json()
    assert "nothing was rated" in said["choices"][0]["message"]["content"]


async def test_help_status_and_unknown_words(proxy: Proxy) -> None:
    assert "/rl undo" in await proxy.say("/rl help") and "/rl undo" in await proxy.say("/rl")
    assert "do not know" in await proxy.say("/rl frobnicate")
    assert "the base model answers" in await proxy.say("/rl status")


async def test_two_hundred_interleaved_conversations(proxy: Proxy) -> None:
    """Every `/rl` hits its own reply, in whatever order and session."""
    dice = random.Random(7)
    opened: list[tuple[str, dict[str, str], str, Any]] = []

    async def open_one(i: int) -> None:
        headers = {"x-rl-session": f"s{i % 2}"}
        response = await proxy.chat(f"question {i}", headers=headers)
        text = json.loads(await response.read())["choices"][0]["message"]["content"]
        opened.append((f"question {i}", headers, text, response.headers["x-rl-completion-id"]))

    await asyncio.gather(*(open_one(i) for i in range(200)))
    dice.shuffle(opened)
    await asyncio.gather(*(proxy.chat(q, text, f"/rl good {id}", headers=h) for q, h, text, id in opened))
    for _, _, _, id in opened:
        rating = await proxy.store.live_rating(id, "owner")
        assert rating is not None and rating.comment == id
