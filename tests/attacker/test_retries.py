"""A request that its SDK sends again: it acts once, and of one that nobody captures nothing is remembered for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from proxy.conversation.retries import Retries, key_of
from proxy.core.tasks import Tasks
from scripts.harness.in_process import Proxy
from tests.attacker.test_labels import asked, train

COUNT = "x-stainless-retry-count"
MINE = {"idempotency-key": "mine"}  # a retry with it has the same answer, also where all of the first one has left
OFF: list[tuple[str, dict[str, str]]] = [
    ("/v1/chat/completions", {"x-rl-capture": "off"}),
    ("/v1/chat/completions", {"x-rl-capture": " OFF "}),
    ("/s/quiet/v1/chat/completions", {}),
    ("/v1/chat/completions", {"x-rl-session": "quiet"}),
]


async def send(proxy: Proxy, path: str, count: int, headers: dict[str, str], text: str, **more: Any) -> str:
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], **more}
    async with proxy.http.post(path, json=body, headers={**MINE, **headers, COUNT: str(count)}) as response:
        assert response.status == 200
        return await response.text()


async def capture(proxy: Proxy, session: str, on: bool) -> None:
    body = {"session": session, "capture": "on" if on else "off"}
    async with proxy.http.post("/rl/capture", json=body) as response:
        assert response.status == 200


# What nobody captures


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "headers"), OFF)
async def test_an_answer_that_is_not_captured_is_not_kept_either(
    proxy: Proxy, path: str, headers: dict[str, str], stream: bool
) -> None:
    """A retry shows it: what is not there cannot be given again."""
    await capture(proxy, "quiet", False)
    for count in (0, 1, 2):
        await send(proxy, path, count, headers, "a secret", stream=stream)
    assert len(proxy.backend.requests) == 3
    assert await proxy.store.completions.page() == []


async def test_a_session_that_is_switched_off_takes_its_answers_along(proxy: Proxy) -> None:
    """And no other session's."""
    path = "/s/quiet/v1/chat/completions"
    await send(proxy, path, 0, {}, "a secret")
    await send(proxy, "/s/other/v1/chat/completions", 0, {}, "stays")
    await capture(proxy, "quiet", False)
    await capture(proxy, "quiet", True)
    await send(proxy, path, 1, {}, "a secret")
    assert len(proxy.backend.requests) == 3
    await send(proxy, "/s/other/v1/chat/completions", 1, {}, "stays")
    assert len(proxy.backend.requests) == 3


async def test_a_session_that_is_switched_off_meanwhile_leaves_nothing(proxy: Proxy) -> None:
    """The answer comes when its session is off; the retry that waits for it may have it, and nobody after that."""
    path = "/s/quiet/v1/chat/completions"
    proxy.backend.hold.clear()
    first = asyncio.create_task(send(proxy, path, 0, {}, "a secret"))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(send(proxy, path, 1, {}, "a secret"))
    await asyncio.sleep(0.05)
    await capture(proxy, "quiet", False)
    second.cancel()
    await asyncio.wait({second})
    await asyncio.sleep(0.05)
    proxy.backend.hold.set()
    await first
    await capture(proxy, "quiet", True)
    await send(proxy, path, 2, {}, "a secret")
    assert len(proxy.backend.requests) == 2


# Commands


async def two_versions(proxy: Proxy) -> None:
    for n, id in enumerate(await asked(proxy, 4)):
        await proxy.rate(completion_id=id, rating="good" if n % 2 else "bad")
    await train(proxy, 1)


DIALECTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "/rl rollback"}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "/rl rollback"}], "max_tokens": 9}),
    ("/v1/responses", {"input": "/rl rollback"}),
]


@pytest.mark.parametrize("headers", [{}, {"x-rl-capture": "off"}], ids=["captured", "off"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), DIALECTS)
async def test_a_command_that_is_sent_again_acts_once(
    proxy: Proxy, path: str, body: dict[str, Any], stream: bool, headers: dict[str, str]
) -> None:
    """A second rollback would take the first one back. Each time it says the same."""
    await two_versions(proxy)
    assert (await proxy.store.versions.pointer()).live == 1
    for count in (0, 1, 2):
        more = {**headers, COUNT: str(count)}
        async with proxy.http.post(path, json={"model": "fake", "stream": stream, **body}, headers=more) as response:
            assert response.status == 200 and "the base model" in await response.text()
    assert (await proxy.store.versions.pointer()).live == 0


async def test_a_command_that_somebody_types_again_acts_again(proxy: Proxy) -> None:
    await two_versions(proxy)
    for _ in range(2):
        await proxy.chat("/rl rollback", headers={COUNT: "0"})
        assert (await proxy.store.versions.pointer()).live == 0
        await proxy.post("/rl/promote/1")


async def test_a_command_goes_on_to_its_end_without_its_client(proxy: Proxy) -> None:
    """The retry comes while it is under way; what it says then is what the first client would have been told."""
    tasks = Tasks()
    retries = Retries(proxy.store, tasks)
    done: list[str] = []
    go = asyncio.Event()

    async def act() -> str:
        await go.wait()
        done.append("once")
        return "rolled back"

    async def client(count: int) -> str:
        request = make_mocked_request("POST", "/v1/chat/completions", {COUNT: str(count)})
        with retries.attempt(request, key_of(request, b"{}"), None) as (attempt, earlier):
            return await retries.once(attempt, earlier, act)

    first = asyncio.create_task(client(0))
    await asyncio.sleep(0)
    first.cancel()
    second, third = asyncio.create_task(client(1)), asyncio.create_task(client(2))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    assert await third == await client(3) == "rolled back"
    assert (await asyncio.wait({first, second}))[0] == {first, second} and first.cancelled() and second.cancelled()
    assert done == ["once"] and tasks.names == []


async def test_what_was_said_of_a_forgotten_answer_is_not_said_again(proxy: Proxy) -> None:
    response = await proxy.chat("hi")
    answer = (await response.json())["choices"][0]["message"]["content"]
    talk = ("hi", answer, "/rl bad because of xyzzy")
    for count in (0, 1):
        said = await (await proxy.chat(*talk, headers={**MINE, COUNT: str(count)})).text()
        assert "xyzzy" in said
    async with proxy.http.post("/rl/forget", json={"completion": response.headers["x-rl-completion-id"]}) as forgot:
        assert forgot.status == 200
    said = await (await proxy.chat(*talk, headers={**MINE, COUNT: "2"})).text()
    assert "xyzzy" not in said and "already" in said
