"""One request, however it is made, keeps the event loop to itself for no longer than a moment.

What is measured is the CPU time of the loop's thread between two of its turns: how busy the machine is does not count.
The fake backend has a loop of its own, as a server has. Before, the worst of these took minutes, or more memory than
there is.
"""

from __future__ import annotations

import asyncio
import gc
import io
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
import pytest

from proxy.conversation.side_requests import SUBAGENT
from proxy.core.bounded_cache import BYTES
from proxy.core.offload import LARGE
from proxy.relay.request_body import MOST
from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy

MOST_S: Final = 0.2  # 0.01 in most; what was walked through on the loop took 0.4, what grew with the square 4 to 17
SIZE: Final = 990_000  # bytes; a little less than what is large


@pytest.fixture
def backend(backend_with_own_loop: FakeBackend) -> FakeBackend:
    return backend_with_own_loop


@asynccontextmanager
async def turns() -> Iterator[list[float]]:  # type: ignore[misc]
    """CPU seconds of this thread between two turns of a task that only waits for its next one."""
    found: list[float] = []

    async def beat() -> None:
        at = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            found.append(now - at)
            at = now

    gc.freeze()  # as the server does: else a collection looks through all that other tests have left
    task = asyncio.create_task(beat())
    yield found
    task.cancel()
    gc.unfreeze()


def said(text: str) -> dict[str, Any]:
    """The fake backend repeats the last message, word for word: so that is a short one."""
    return {"model": "fake", "messages": [{"role": "user", "content": one} for one in (text, "hi")]}


def many(*messages: dict[str, Any]) -> dict[str, Any]:
    count = min(SIZE // len(orjson.dumps(messages)), (MOST - 1) // len(messages))
    return {"model": "fake", "messages": [*messages * count, {"role": "user", "content": "hi"}]}


CALL: Final = {"function": {"name": "f"}}
HOSTILE: Final[dict[str, Callable[[], tuple[str, dict[str, Any]]]]] = {
    "half keys": lambda: ("/v1/chat/completions", said(("-----BEGIN PRIVATE KEY-----" * 700 + "-----END ") * 50)),
    "blocks": lambda: ("/v1/chat/completions", said("<user_infoX" * 9000 + "a" * 880_000 + "</user_info>")),
    "cards": lambda: ("/v1/chat/completions", {**said("hi"), "metadata": {"a": "4111 " * (SIZE // 5)}}),
    "messages": lambda: ("/v1/chat/completions", many({"role": "user", "content": ""})),
    "system messages": lambda: ("/v1/chat/completions", many({"role": "system"})),
    "mixed messages": lambda: ("/v1/chat/completions", many({"role": "system"}, {"role": "user", "content": ""})),
    "users in a row": lambda: ("/v1/messages", {**many({"role": "user", "content": "a"}), "max_tokens": 1}),
    "items": lambda: (
        "/v1/responses",
        {"model": "fake", "input": many({"role": "assistant", "content": "a"})["messages"]},
    ),
    "calls": lambda: (
        "/api/chat",
        {
            "model": "fake", "stream": False,
            "messages": [
                {"role": "assistant", "content": "", "tool_calls": [CALL] * 15_000},
                *[{"role": "tool", "content": "a"}] * 15_000,
                {"role": "user", "content": "hi"},
            ],
        },
    ),
    "parts": lambda: (
        "/v1/chat/completions",
        {"model": "fake", "messages": [{"role": "user", "content": [[]] * (SIZE // 3)}, *said("hi")["messages"]]},
    ),
    "keys": lambda: ("/v1/chat/completions", {**said("hi"), "tools": [{f"k{n}": 1 for n in range(90_000)}]}),
    "command": lambda: (
        "/v1/chat/completions",
        {"model": "fake", "messages": [*said("hi")["messages"] * 9_000, {"role": "user", "content": "/rl good"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_no_request_of_a_megabyte_stalls_others(proxy: Proxy, hostile: str) -> None:
    path, request = HOSTILE[hostile]()
    body = orjson.dumps(request)
    assert len(body) < 1_100_000
    for _ in range(2):  # what is known of the conversation is walked through the second time
        async with turns() as found:
            sending = asyncio.create_task(proxy.http.post(path, data=io.BytesIO(body)))
            while not sending.done():
                assert await proxy.say("hello") == "You said: hello "
            async with await sending as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
        assert max(found) < MOST_S, sorted(found)[-3:]


async def test_a_large_conversation_that_goes_on_stalls_nobody(proxy: Proxy) -> None:
    """Nearly all of it was said before; it has to be walked through all the same."""
    body = orjson.dumps({"model": "fake", "messages": [{"role": "user", "content": "abc " * 10}] * (MOST - 1)})
    assert LARGE < len(body) < BYTES // 4
    for more in (b" ", b"  "):
        again = io.BytesIO(body[:-1] + more + b"}")
        async with turns() as found, proxy.http.post("/v1/chat/completions", data=again) as answer:
            assert answer.status == 200
        assert max(found) < MOST_S, sorted(found)[-3:]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/messages/count_tokens"])
async def test_more_messages_than_any_conversation_has_are_refused(proxy: Proxy, path: str) -> None:
    """Each is a row of the store, for which all others wait."""
    request = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": ""}] * (MOST + 1)}
    async with proxy.http.post(path, data=io.BytesIO(orjson.dumps(request))) as answer:
        assert answer.status == 400
        assert "has 20,001 messages" in await answer.text()
    assert await proxy.store.completions.page() == []


async def test_a_batch_of_long_comments_stalls_nobody(proxy: Proxy) -> None:
    id = (await proxy.chat("hi")).headers["x-rl-completion-id"]
    batch = [
        {"completion_id": id, "rating": "bad", "rater": f"r{n}", "comment": "4111 " * 3900, "correction": "sk-" * 6000}
        for n in range(200)
    ]
    body = io.BytesIO(orjson.dumps(batch))
    async with turns() as found, proxy.http.post("/v1/feedback", data=body) as answer:
        assert answer.status == 201
    assert max(found) < MOST_S, sorted(found)[-3:]
    assert (await proxy.store.ratings.history(id))[0].comment == ("4111 " * 3900)


@pytest.mark.parametrize("piece", ["word ", "<think>", "&#1;", "a\u0301\u0323", '<details type="', "4111 "])
async def test_a_feedback_of_a_long_chat_stalls_nobody(proxy: Proxy, piece: str) -> None:
    """The answer was edited since, so all of its text is compared; and so is all that was said above it."""
    headers = {"x-openwebui-chat-id": "chat-1"}
    reply = (await (await proxy.chat("hi", headers=headers)).json())["choices"][0]["message"]["content"]
    long = piece * (SIZE // 2 // len(piece.encode()))
    shown = {"role": "assistant", "content": long, "originalContent": reply, "output": []}
    feedback = {"id": "f", "data": {"rating": 1}, "meta": {"chat_id": "chat-1"}}
    talk = [{"role": "user", "content": f"{n} {long[:300]}"} for n in range(1900)]
    for above in ([{"role": "user", "content": "hi"}], talk):
        body = io.BytesIO(orjson.dumps({"feedback": feedback, "messages": [*above, shown], "rater": "ann"}))
        async with turns() as found, proxy.http.post("/v1/feedback/open-webui", data=body) as answer:
            assert answer.status in (200, 201), await answer.text()
        assert max(found) < MOST_S, sorted(found)[-3:]


async def test_long_system_texts_are_compared_by_their_beginnings(proxy: Proxy) -> None:
    """Whether a subagent asks is seen by how much of two system texts is the same: of megabytes of lines, too."""

    async def asked(name: str, *said: str, **more: Any) -> str:
        system = "".join(f"{name}{n}\n" for n in range(SIZE // 10))
        roles = ("system", "user", "assistant", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, (system, *said), strict=False)]
        body = io.BytesIO(orjson.dumps({"model": "fake", "messages": messages, **more}))
        async with proxy.http.post("/v1/chat/completions", data=body) as answer:
            assert answer.status == 200
            return str((await answer.json())["choices"][0]["message"]["content"])

    for name in "abcde":
        reply = await asked(name, "hello")
    async with turns() as found:
        await asked("f", "hello", reply, "more", tools=[{"type": "function", "function": {"name": "f"}}])
    newest = max(await proxy.store.completions.page(), key=lambda one: one.seq)
    assert newest.new.turn_rule == SUBAGENT
    assert max(found) < MOST_S, sorted(found)[-3:]
