"""What a version is asked before it goes live: one short question, and the prompts of the conversations that run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from config.sections import Redaction
from proxy.conversation import active_conversations
from proxy.conversation.active_conversations import ActiveConversations
from proxy.conversation.history_cache import History
from proxy.conversation.redaction import Redactor
from proxy.core.json_edit import dumps
from proxy.dialects import CHAT, DIALECTS
from proxy.dialects.base import OutgoingRequest
from proxy.versions import warm_up
from scripts.fakes.llamacpp import FakeLlama
from scripts.harness.in_process import Proxy
from store.records import Message, NewCompletion
from tests.harness.llamacpp import said_by

MESSAGES = next(dialect for dialect in DIALECTS if dialect.name == "messages")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def first_asked(server: FakeLlama, model: str) -> list[dict[str, Any]]:
    """What this version was asked, without the short question, in the order of what was said last."""
    asked = [body for body in server.requests if body["model"].startswith(f"{model}-")]  # and the home's mark
    assert asked.pop(0)["messages"] == [{"role": "user", "content": "Hello"}]
    return sorted(asked, key=lambda body: str(body["messages"][-1]["content"]))


async def said(proxy: Proxy, *texts: str, **more: Any) -> None:
    assert (await (await proxy.chat(*texts, **more)).read()) != b""


async def test_a_version_has_read_what_runs_before_it_goes_live(routed: Proxy, router: FakeLlama) -> None:
    async with routed.http.post("/rl/capture", json={"session": "other", "capture": "off"}) as response:
        assert response.status == 200  # it takes what made the versions with it
    await said(routed, "a1", headers={"x-rl-session": "a"})
    await said(routed, "a1", "yes", "a2", headers={"x-rl-session": "a"}, tools=[TOOL], stream=True, temperature=0.5)
    await said(routed, "b1", max_tokens=50, n=1, stream=True, stream_options={"include_usage": True})
    await said(routed, "secret", headers={"x-rl-capture": "off"})
    await said(routed, "title", headers={"x-rl-turn": "side"})
    await said(routed, "pinned", model="fake@base")
    body = {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "m1"}], "system": "Be brief."}
    async with routed.http.post("/v1/messages", json=body, headers={"x-rl-session": "m"}) as response:
        await response.read()
    before = (await routed.get("/rl/status"))["counts"]
    assert (await routed.post("/rl/promote/1"))[0] == 200
    last, plain, translated = first_asked(router, "fake@v1")
    assert [m["content"] for m in last["messages"]] == ["a1", "yes", "a2"]
    assert last["tools"] == [TOOL] and last["max_tokens"] == 2 and "stream" not in last
    assert plain == {
        "model": f"fake@v1-{routed.mark}",
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "b1"}],
    }
    assert [m["role"] for m in translated["messages"]] == ["system", "user"]
    assert (await routed.get("/rl/status"))["counts"] == before, "no completion is made of it"


async def test_what_is_taken_back_is_taken_back_at_once(routed: Proxy, router: FakeLlama) -> None:
    for version in (1, 2):
        await routed.post(f"/rl/promote/{version}")
    router.requests.clear()
    await said(routed, "new")
    assert (await routed.post("/rl/rollback"))[1]["live"] == 1
    assert first_asked(router, "fake@v1") == []


async def test_a_prompt_that_takes_too_long_or_fails_holds_no_swap_up(
    routed: Proxy, router: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "READ_AHEAD_S", 0.1)
    for text in ("long", "odd"):
        await said(routed, text)
    router.stuck, router.chokes = "long", "odd"
    async with asyncio.timeout(20):
        assert (await routed.post("/rl/promote/1"))[0] == 200
    assert len(first_asked(router, "fake@v1")) > 1 and (await routed.get("/rl/status"))["problem"] is None
    assert await said_by(routed) == f"fake@v1-{routed.mark}"


async def test_what_may_not_be_kept_is_not_read_ahead(routed: Proxy, router: FakeLlama) -> None:
    """What has been forgotten, and a session that was switched off a moment ago."""
    for version, forget in ((1, {"session": "s"}), (2, None)):
        await said(routed, "private", headers={"x-rl-session": "s"})
        path, body = ("/rl/forget", forget) if forget else ("/rl/capture", {"session": "s", "capture": "off"})
        async with routed.http.post(path, json=body) as response:
            assert response.status == 200, await response.text()
        assert (await routed.post(f"/rl/promote/{version}"))[0] == 200
        assert first_asked(router, f"fake@v{version}") == []


# Which conversations run


def turn(text: str, session: str | None = None, **more: Any) -> tuple[NewCompletion, OutgoingRequest]:
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages}
    row = NewCompletion(
        id="c", request_id="c", choice=0, created_at=0.0, dialect="chat", backend="vllm", model="m", served_model="m",
        version=0, session=session, user=None, turn="main", turn_rule="", streamed=False,
        prompt=(Message("user", dumps({"content": text})),), request=b"{}",
    )  # fmt: skip
    return row, OutgoingRequest(dumps(body), {}, body, CHAT.parse(body))


def texts(found: ActiveConversations, most: int = 100) -> list[str]:
    return [str(prompt["messages"][-1]["content"]) for prompt in found.prompts(most)]


def noted(*turns: tuple[NewCompletion, OutgoingRequest]) -> ActiveConversations:
    found = ActiveConversations(History(Redactor(Redaction())))
    for row, question in turns:
        found.note(row, CHAT, question)
    return found


def test_the_newest_turn_of_each_of_the_newest_conversations() -> None:
    many = [turn(f"q{n}") for n in range(active_conversations.MOST + 3)]
    assert texts(noted(*many)) == [f"q{n}" for n in range(active_conversations.MOST + 2, 2, -1)]
    assert texts(noted(*many), most=1) == [f"q{active_conversations.MOST + 2}"] and texts(noted(*many), most=0) == []
    assert texts(noted(turn("a", "s"), turn("b"), turn("c", "s"), turn("b"))) == ["b", "c"]


def test_what_is_long_ago_or_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_conversations, "LONGEST", 100)
    monkeypatch.setattr(active_conversations, "ALL", 150)
    assert texts(noted(turn("x" * 100), turn("short"))) == ["short"]
    assert texts(noted(turn("a" * 50), turn("b" * 50))) == ["b" * 50]
    found = noted(turn("a"), turn("b"))
    monkeypatch.setattr(active_conversations, "ACTIVE_S", 0.0)
    assert texts(found) == []


def test_what_chat_completions_cannot_say_is_left_out() -> None:
    row, question = turn("a")
    found = noted(turn("b"))
    found.note(row, MESSAGES, replace(question, body={"messages": [{"role": "user", "content": [{"type": "image"}]}]}))
    assert len(found._turns) == 2 and texts(found) == ["b"]
