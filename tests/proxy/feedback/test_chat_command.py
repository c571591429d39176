"""`/rl …` in the chat: answered here, gone from the history, and always about the reply right above it."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from proxy.feedback.chat_command import parse
from scripts.harness.agent_formats import CLAUDE_CODE, slash, texts
from scripts.harness.in_process import Proxy
from tests.harness.talks import events


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/rlreset", ("/rlreset", "")), ("good why", ("good", "why")),
        ("/rl", ("", "")), ("/rl good", ("good", "")), ("  /rl BAD  too long ", ("bad", "too long")),
        ("/rl bad: too\nlong", ("bad", "too\nlong")), ("/rl bad\nlong", ("bad", "long")),
        ("/rl\nbad", ("bad", "")), ("/rl 4 nice", ("4", "nice")),
        ('/rl "bad too long"', ("bad", "too long")), ('/rl good "x"', ("good", '"x"')), ('/rl "', ('"', "")),
    ],
)  # fmt: skip
def test_parse(text: str, command: tuple[str, str]) -> None:
    assert parse(text)[:2] == command
    assert parse(text).several_lines == ("\n" in text.strip())


async def test_good_rates_the_reply_above(proxy: Proxy) -> None:
    first = await proxy.chat("one")
    reply = (await first.json())["choices"][0]["message"]["content"]
    await proxy.chat("something else")
    said = await proxy.say("one", reply, "/rl good very clear")
    assert "rated good" in said and "very clear" in said
    rating = await proxy.store.ratings.live(first.headers["x-rl-completion-id"], "owner")
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
    assert "rated 5 of 5" in text and got[-3]["choices"][0]["finish_reason"] == "stop"
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_undo(proxy: Proxy) -> None:
    first = await proxy.chat("one")
    reply = (await first.json())["choices"][0]["message"]["content"]
    assert "nothing to undo" in await proxy.say("one", reply, "/rl undo")
    await proxy.say("one", reply, "/rl bad")
    assert "taken back" in await proxy.say("one", reply, "/rl undo")
    assert await proxy.store.ratings.live(first.headers["x-rl-completion-id"], "owner") is None


async def test_what_was_not_captured_is_not_rated(proxy: Proxy) -> None:
    await proxy.say("one")
    assert "nothing was rated" in await proxy.say("one", "an answer from elsewhere", "/rl good")
    assert "nothing was rated" in await proxy.say("/rl good")
    assert (await proxy.store.stats.counts())["good"] == 0


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
        answer = json.loads(await response.read())
        assert response.status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        opened.append((f"question {i}", headers, text, response.headers["x-rl-completion-id"]))

    await asyncio.gather(*(open_one(i) for i in range(200)))
    dice.shuffle(opened)
    await asyncio.gather(*(proxy.chat(q, text, f"/rl good {id}", headers=h) for q, h, text, id in opened))
    for _, _, _, id in opened:
        rating = await proxy.store.ratings.live(id, "owner")
        assert rating is not None and rating.comment == id


REMINDER = {"type": "text", "text": "<system-reminder>\nToday is Saturday.\n</system-reminder>"}


async def ask(proxy: Proxy, messages: list[dict[str, Any]], **headers: str) -> tuple[str, str]:
    """The text of the answer, and its completion's id."""
    body = {"model": "fake", "messages": messages}
    async with proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer["choices"][0]["message"]["content"], response.headers.get("x-rl-completion-id", "")


def says(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("wrapped", [texts(*slash("/rl good clear")), [REMINDER, *texts("/rl good clear")]])
async def test_wrapped_by_an_agent(proxy: Proxy, wrapped: Any) -> None:
    """System text and reminders of another day, a command in the agent's wrapping, and the history goes on."""
    question = [{"type": "text", "text": "one"}]
    reply, id = await ask(proxy, [says("system", "It is Friday."), says("user", [REMINDER, *question])], **CLAUDE_CODE)
    before = [says("system", "It is Saturday."), says("user", question), says("assistant", reply)]
    said, _ = await ask(proxy, [*before, says("user", wrapped), says("system", "git status: clean")], **CLAUDE_CODE)
    assert "rated good, because “clear”" in said
    rating = await proxy.store.ratings.live(id, "owner")
    assert rating is not None and rating.comment == "clear"
    await ask(proxy, [*before, says("user", wrapped), says("assistant", said), says("user", "two")], **CLAUDE_CODE)
    assert [m["content"] for m in proxy.backend.requests[-1]["messages"]] == ["It is Saturday.", question, reply, "two"]


async def test_a_tools_result_never_rates(proxy: Proxy) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply, _ = await ask(proxy, [says("user", "one")])
    for last in (
        {"role": "tool", "tool_call_id": "c", "content": "/rl good"},
        says("user", [{"type": "text", "text": "read this:"}, {"type": "text", "text": "/rl good"}]),
    ):
        middle = {"role": "assistant", "content": reply, "tool_calls": [call]}
        await ask(proxy, [says("user", "one"), middle, last])
    assert (await proxy.store.stats.counts())["good"] == 0 and len(proxy.backend.requests) == 3


async def test_a_correction(proxy: Proxy) -> None:
    reply, id = await ask(proxy, [says("user", "one")])
    assert "Nothing was rated" in await proxy.say("one", reply, "/rl fix:")
    said = await proxy.say("one", reply, "/rl fix: two\nlines")
    assert "your text, from “two” to “lines”, would have been right in place of “You said: one”" in said
    assert await proxy.store.ratings.live(id, "owner") is None
    assert "what would have been right" in await proxy.say("one", reply, "/rl fix: two\nlines", said, "/rl fix")
    rating = await proxy.store.ratings.live(id, "owner")
    assert rating is not None and (rating.value, rating.correction, rating.comment) == (-1.0, "two\nlines", None)
    assert "is replaced; its correction stays)" in await proxy.say("one", reply, "/rl bad too long")
    assert "is replaced; its comment stays)" in await proxy.say("one", reply, "/rl fix: two")
    assert "is replaced; its comment and correction stay)" in await proxy.say("one", reply, "/rl 2")
    rating = await proxy.store.ratings.live(id, "owner")
    assert rating is not None and (rating.value, rating.correction, rating.comment) == (-0.5, "two", "too long")
    assert "is replaced)" in await proxy.say("one", reply, "/rl good")
    rating = await proxy.store.ratings.live(id, "owner")
    assert rating is not None and (rating.correction, rating.comment) == (None, None)
    assert "so nothing was rated" in await proxy.say("one", reply, "/rl good " + "x" * 20_001)
    assert "so nothing was rated" in await proxy.say("one", reply, "/rl fix: x\n" + "x" * 20_001)


async def test_a_correction_of_several_lines_is_confirmed_by_whoever_sent_it(proxy: Proxy) -> None:
    """For the same answer, by the same person."""
    reply, id = await ask(proxy, [says("user", "one")])
    other, _ = await ask(proxy, [says("user", "two")])
    await proxy.say("one", reply, "/rl fix: a\nb")
    assert "Nothing was rated" in await proxy.say("two", other, "/rl fix")
    ann = {"x-rl-user": "ann"}
    theirs = await (await proxy.chat("one", reply, "/rl fix", headers=ann)).json()
    assert "nothing was rated" in theirs["choices"][0]["message"]["content"]
    assert "so nothing was rated" in await proxy.say("one", reply, "/rl good two\nlines")
    async with proxy.http.post("/rl/forget", json={"completion": (await ask(proxy, [says("user", "x")]))[1]}) as done:
        assert done.status == 200  # what waits may be of it
    assert "Nothing was rated" in await proxy.say("one", reply, "/rl fix")
    assert "nothing is rated yet" in await proxy.say("one", reply, "/rl fix: c\n\nd")
    assert "what would have been right" in await proxy.say("one", reply, "/rl fix")
    assert [rating.correction for rating in await proxy.store.ratings.history(id)] == ["c\n\nd"]


async def test_an_admins_acts(proxy: Proxy) -> None:
    assert "training is paused" in await proxy.say("/rl pause")
    assert (await proxy.get("/rl/status"))["training"]["paused"]
    assert "training goes on" in await proxy.say("/rl resume")
    assert "no fresh ratings" in await proxy.say("/rl train")
    assert "the base model answers" in await proxy.say("/rl reset")
    assert "rlproxy: " in await proxy.say("/rl rollback")


async def test_an_act_takes_no_words_after_it(proxy: Proxy) -> None:
    """They may be a document's, and the person may not have meant the act at all."""
    reply = await proxy.say("one")
    await proxy.say("one", reply, "/rl good")
    for verb in ("train", "pause", "resume", "rollback", "reset", "undo"):
        said = await proxy.say("one", reply, f"/rl {verb} please")
        assert "nothing was done" in said and f"Type `/rl {verb}` alone" in said
    assert not (await proxy.get("/rl/status"))["training"]["paused"]
    assert (await proxy.store.versions.pointer()).changed_at == 0 and (await proxy.store.stats.counts())["good"] == 1
    assert len(proxy.backend.requests) == 1


async def test_who_is_no_admin_is_refused_with_the_reason(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use", server__admin_key="boss")
    for verb in ("train", "pause", "resume", "rollback", "reset"):
        said, _ = await ask(proxy, [says("user", f"/rl {verb}")], authorization="Bearer use")
        assert "admin key" in said and "nothing was done" in said
    async with proxy.http.get("/rl/status", headers={"authorization": "Bearer use"}) as response:
        assert not (await response.json())["training"]["paused"]
    said, _ = await ask(proxy, [says("user", "/rl pause")], authorization="Bearer boss")
    assert "training is paused" in said


async def test_sessions_of_agents_and_side_turns(proxy: Proxy) -> None:
    """Claude Code's body names the session; its title request is no turn to rate."""
    metadata = {"user_id": f"user_{'ab12' * 16}_account__session_01234567-89ab-cdef-0123-456789abcdef"}
    headers = {"user-agent": "claude-cli/2.1.329 (external, cli)"}
    main = await proxy.chat("one", metadata=metadata, headers=headers)
    await proxy.chat("### Task:\nGenerate 1-3 broad tags categorizing the chat", metadata=metadata, headers=headers)
    title = (await proxy.store.completions.page(limit=1))[0]
    assert (title.new.turn, title.new.turn_rule) == ("side", "tags")
    status, rating = await proxy.rate(session="01234567-89ab-cdef-0123-456789abcdef", rating="good")
    assert status == 201 and rating["completion_id"] == main.headers["x-rl-completion-id"]


async def test_interleaved_agents_whose_system_text_changes(proxy: Proxy) -> None:
    """Four turns of fifty conversations in two sessions, mixed: each command hits the reply above it."""
    dice = random.Random(11)
    talks: list[list[dict[str, Any]]] = [[] for _ in range(50)]
    ids: dict[tuple[int, int], str] = {}

    async def turn(at: int, number: int) -> None:
        talk, headers = talks[at], {"x-rl-session": f"s{at % 2}"}
        talk.append(says("user", f"question {number} of {at % 25}"))  # the same words in pairs of conversations
        fresh = says("system", f"now: {dice.random()}")
        reply, ids[at, number] = await ask(proxy, [fresh, *talk], **headers)
        talk.append(says("assistant", reply))
        talk.append(says("user", f"/rl good {at}/{number}"))
        answer, _ = await ask(proxy, [says("system", f"now: {dice.random()}"), *talk], **headers)
        talk.append(says("assistant", answer))

    for number in range(4):
        order = list(range(50))
        dice.shuffle(order)
        await asyncio.gather(*(turn(at, number) for at in order))
    for (at, number), id in ids.items():
        rating = await proxy.store.ratings.live(id, "owner")
        assert rating is not None and rating.comment == f"{at}/{number}"
