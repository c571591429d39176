"""An SDK's retry: never a second completion, never a wrong answer. Real sockets, and once the real SDK."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from proxy.access.bodies import HELD_BYTES, HeldBytes
from proxy.conversation import retries
from proxy.core.sharing.shares import Shares
from scripts.harness.in_process import Proxy

COUNT = "x-stainless-retry-count"


class Waiting:
    """How many retries have begun to wait for the try before them, and how many of these have given up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = self.given_up = 0
        settle = retries.Retries.settle

        async def counted(*args: Any) -> bool:
            self.began += 1
            try:
                return await settle(*args)
            except asyncio.CancelledError:
                self.given_up += 1
                raise

        monkeypatch.setattr(retries.Retries, "settle", counted)

    async def until(self, *, began: int, given_up: int = 0) -> None:
        while (self.began, self.given_up) != (began, given_up):
            await asyncio.sleep(0.01)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


async def send(proxy: Proxy, text: str, count: int, **more: Any) -> tuple[int, bytes, str]:
    headers = {COUNT: str(count), **more.pop("headers", {})}
    response = await proxy.chat(text, headers=headers, **more)
    return response.status, await response.read(), response.headers.get("x-rl-completion-id", "")


async def statuses(proxy: Proxy) -> list[str]:
    return [c.status for c in await proxy.store.completions.page()]


@pytest.mark.parametrize("name", ["x-rl-completion-id", "idempotency-key"])
async def test_an_answer_that_got_lost_is_given_again(proxy: Proxy, name: str) -> None:
    """All of it had left; that this is the same request is its client's own word."""
    first = await send(proxy, "one", 0, headers={name: "mine"})
    for count in (1, 2):  # and again, should that one get lost too
        assert await send(proxy, "one", count, headers={name: "mine"}) == first
    assert len(proxy.backend.requests) == 1 and await statuses(proxy) == ["done"]
    assert (await proxy.rate(completion_id=first[2], rating="good"))[0] == 201


async def test_an_answer_that_is_forgotten_is_not_given_again(proxy: Proxy) -> None:
    mine = {"idempotency-key": "mine"}
    _, _, id = await send(proxy, "secret", 0, headers=mine)
    await send(proxy, "stays", 0, headers=mine)
    async with proxy.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200
    assert len(proxy.backend.requests) == 2
    _, _, again = await send(proxy, "secret", 1, headers=mine)
    assert len(proxy.backend.requests) == 3 and await proxy.store.completions.get(again) is not None
    await send(proxy, "stays", 1, headers=mine)
    assert len(proxy.backend.requests) == 3, "nobody forgot that one"


async def test_an_answer_of_which_one_choice_is_forgotten_is_not_given_again(proxy: Proxy) -> None:
    mine = {"idempotency-key": "mine"}
    _, _, id = await send(proxy, "secret", 0, headers=mine, n=2)
    async with proxy.http.post("/rl/forget", json={"completion": f"{id}.1"}) as response:
        assert response.status == 200
    await send(proxy, "secret", 1, headers=mine, n=2)
    assert len(proxy.backend.requests) == 2


async def kept(proxy: Proxy) -> dict[str, tuple[str, str]]:
    return {c.new.id: (c.new.turn, c.new.turn_rule) for c in await proxy.store.completions.page()}


async def test_an_answer_that_nobody_read_is_no_main_turn(proxy: Proxy) -> None:
    """A client is used in a second event loop: the connection that it kept takes the question, and nobody reads."""
    _, _, unread = await send(proxy, "one", 0)
    _, _, read = await send(proxy, "one", 1)
    while (await kept(proxy))[unread][0] == "main":
        await asyncio.sleep(0.01)
    assert await kept(proxy) == {unread: ("side", "retried"), read: ("main", "default")}
    assert (await proxy.rate(completion_id="last", rating="good"))[1]["completion_id"] == read


async def test_what_somebody_read_or_may_have_read_stays_a_main_turn(proxy: Proxy) -> None:
    _, _, rated = await send(proxy, "one", 0)
    assert (await proxy.rate(completion_id=rated, rating="good"))[0] == 201
    await send(proxy, "one", 1)
    for count in (0, 0, 1):  # asked twice on purpose: the retry is one's of these, or neither's
        await send(proxy, "two", count)
    await asyncio.sleep(0.05)
    assert {turn for turn, _ in (await kept(proxy)).values()} == {"main"}


async def test_a_retry_takes_the_place_of_the_try_that_failed(proxy: Proxy) -> None:
    proxy.backend.mood = "error"
    assert (await send(proxy, "one", 0))[0] == 500
    proxy.backend.mood = "well"
    status, _, id = await send(proxy, "one", 1)
    assert status == 200 and await statuses(proxy) == ["done"]
    assert (await proxy.store.completions.page())[0].new.id == id


async def test_a_retry_waits_for_the_try_under_way(proxy: Proxy) -> None:
    """The first client has given up, which the proxy hears at some time; meanwhile nothing is asked twice."""
    proxy.backend.mood = "hang"
    first = asyncio.create_task(send(proxy, "one", 0))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait({first})
    proxy.backend.mood = "well"
    status, _, _ = await send(proxy, "one", 1)
    assert status == 200 and await statuses(proxy) == ["done"] and proxy.backend.cancelled == 1


async def test_a_retry_beside_a_first_try_that_still_runs_gets_its_answer(proxy: Proxy, waiting: Waiting) -> None:
    proxy.backend.hold.clear()
    first = asyncio.create_task(send(proxy, "one", 0))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(send(proxy, "one", 1))
    await waiting.until(began=1)
    proxy.backend.hold.set()
    assert await first == await second
    assert len(proxy.backend.requests) == 1 and await statuses(proxy) == ["done"]


async def test_a_retry_that_gives_up_too_leaves_the_first_try_to_the_next(proxy: Proxy, waiting: Waiting) -> None:
    proxy.backend.hold.clear()
    first = asyncio.create_task(send(proxy, "one", 0))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(send(proxy, "one", 1))
    await waiting.until(began=1)
    second.cancel()
    await waiting.until(began=1, given_up=1)
    third = asyncio.create_task(send(proxy, "one", 2))
    await waiting.until(began=2, given_up=1)
    proxy.backend.hold.set()
    assert await first == await third
    assert len(proxy.backend.requests) == 1 and await statuses(proxy) == ["done"]


async def test_a_stream_that_got_lost_is_given_again(proxy: Proxy) -> None:
    mine = {"idempotency-key": "mine"}
    first = await send(proxy, "one", 0, stream=True, headers=mine)
    assert first[1].endswith(b"[DONE]\n\n")
    for count in (1, 2):
        assert await send(proxy, "one", count, stream=True, headers=mine) == first
    assert len(proxy.backend.requests) == 1 and await statuses(proxy) == ["done"]
    again = await proxy.chat("one", headers={COUNT: "3", **mine}, stream=True)
    assert again.headers["content-type"].startswith("text/event-stream") and "content-length" not in again.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "one"}),
        ("/v1/responses", {"input": "one"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "one"}]}),
    ],
)
async def test_a_stream_of_any_dialect_is_given_again(proxy: Proxy, path: str, body: dict[str, Any]) -> None:
    answers = []
    for count in ("0", "1"):
        async with proxy.http.post(
            path, json={"model": "fake", "stream": True, **body}, headers={COUNT: count, "idempotency-key": "mine"}
        ) as response:
            answers.append((await response.read(), response.headers["x-rl-completion-id"]))
    assert answers[0] == answers[1] and b"said" in answers[0][0] and await statuses(proxy) == ["done"]


async def test_a_retry_of_a_stream_that_still_runs_gets_all_of_it(proxy: Proxy, waiting: Waiting) -> None:
    proxy.backend.hold.clear()
    first = asyncio.create_task(send(proxy, "one", 0, stream=True))
    while not proxy.backend.requests:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(send(proxy, "one", 1, stream=True))
    await waiting.until(began=1)
    proxy.backend.hold.set()
    assert await first == await second
    assert len(proxy.backend.requests) == 1 and await statuses(proxy) == ["done"]


async def test_a_client_that_left_before_the_end_of_its_stream_asks_afresh(proxy: Proxy) -> None:
    proxy.backend.pause_s = 0.05
    first = await proxy.chat("a b c d e f g h", headers={COUNT: "0"}, stream=True)
    while b"said" not in await first.content.readany():
        pass
    first.close()
    proxy.backend.pause_s = 0.0
    status, raw, id = await send(proxy, "a b c d e f g h", 1, stream=True)
    assert status == 200 and raw.endswith(b"[DONE]\n\n") and id != first.headers["x-rl-completion-id"]
    assert len(proxy.backend.requests) == 2
    assert [(c.new.id, c.status) for c in await proxy.store.completions.page()] == [(id, "done")]


async def test_a_client_that_left_while_its_answer_was_stored(proxy: Proxy) -> None:
    """The disk is slow, the client gives up before the last event: one answer and one row all the same."""
    with closing(sqlite3.connect(proxy.home / "rlproxy.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # nothing is committed until this lets go
        first = await proxy.chat("one", headers={COUNT: "0"}, stream=True)
        got = b""
        while b"stop" not in got:
            got += await first.content.readany()
        assert b"[DONE]" not in got
        first.close()
        await asyncio.sleep(0.1)
    _, raw, id = await send(proxy, "one", 1, stream=True)
    assert raw.endswith(b"[DONE]\n\n")
    assert [(c.new.id, c.status) for c in await proxy.store.completions.page()] == [(id, "done")]


@pytest.mark.parametrize(
    ("mood", "said"),
    [("cut", b"backend_broke"), ("stop-without-done", b"backend_broke"), ("error-event", b"out of memory")],
)
async def test_a_stream_that_broke_is_asked_for_again_and_its_row_goes(proxy: Proxy, mood: str, said: bytes) -> None:
    proxy.backend.mood = mood
    _, raw, _ = await send(proxy, "one", 0, stream=True)
    assert said in raw
    proxy.backend.mood = "well"
    _, raw, id = await send(proxy, "one", 1, stream=True)
    assert raw.endswith(b"[DONE]\n\n") and [c.new.id for c in await proxy.store.completions.page()] == [id]


async def test_what_somebody_rated_stays(proxy: Proxy) -> None:
    proxy.backend.mood = "cut"
    _, _, id = await send(proxy, "one", 0, stream=True)
    await proxy.rate(completion_id=id, rating="bad")
    proxy.backend.mood = "well"
    await send(proxy, "one", 1, stream=True)
    assert len(await statuses(proxy)) == 2 and await proxy.store.ratings.live(id, "owner") is not None


async def test_a_stream_that_nobody_keeps_is_asked_for_again(proxy: Proxy) -> None:
    await send(proxy, "one", 0, stream=True, headers={"x-rl-capture": "off"})
    status, _, _ = await send(proxy, "one", 1, stream=True, headers={"x-rl-capture": "off"})
    assert status == 200 and await statuses(proxy) == []


async def test_the_rows_of_all_choices_are_replaced(proxy: Proxy) -> None:
    proxy.backend.mood = "error"
    await send(proxy, "one", 0, n=3)
    proxy.backend.mood = "well"
    await send(proxy, "one", 1, n=3)
    assert await statuses(proxy) == ["done"] * 3


async def test_an_id_of_the_clients_own_survives_its_retry(proxy: Proxy) -> None:
    proxy.backend.mood = "error"
    await send(proxy, "one", 0, headers={"x-rl-completion-id": "mine"})
    proxy.backend.mood = "well"
    status, _, id = await send(proxy, "one", 1, headers={"x-rl-completion-id": "mine"})
    assert (status, id) == (200, "mine") and await statuses(proxy) == ["done"]


@pytest.mark.parametrize(
    "other",
    [
        {"headers": {"x-rl-session": "t"}},
        {"headers": {"authorization": "Bearer b"}},
        {"headers": {"x-claude-code-session-id": "t"}},
        {"headers": {"user-agent": "another"}},
        {"temperature": 1},
        {"text": "two"},
    ],
)
async def test_another_request_is_no_retry_of_this(proxy: Proxy, other: dict[str, Any]) -> None:
    proxy.backend.mood = "cut"
    _, _, first = await send(proxy, "one", 0, stream=True)
    proxy.backend.mood = "well"
    await send(proxy, other.pop("text", "one"), 1, stream=True, **other)
    assert len(await statuses(proxy)) == 2 and await proxy.store.completions.get(first) is not None


async def test_the_same_question_twice_is_two_completions(proxy: Proxy) -> None:
    for headers in ({COUNT: "0"}, {COUNT: "0"}, {}, {COUNT: "one"}):
        await proxy.chat("one", headers=headers)
    assert await statuses(proxy) == ["done"] * 4


async def test_two_equal_requests_and_the_one_that_failed(proxy: Proxy) -> None:
    """The retry is for the try that got no answer, not for its twin that did."""
    proxy.backend.mood = "error"
    await send(proxy, "one", 0)
    proxy.backend.mood = "well"
    _, _, twin = await send(proxy, "one", 0)
    _, _, retried = await send(proxy, "one", 1)
    assert twin != retried and await statuses(proxy) == ["done", "done"]


async def refused(proxy: Proxy, **more: Any) -> None:
    """A first try, while so many requests are under way that it gets no further than our limits."""
    assert (await send(proxy, "one", 0, **more))[0] in (429, 503)


@pytest.fixture
async def small(proxy: Proxy) -> Proxy:
    """It takes one request at a time."""
    await proxy.stop()
    await proxy.start(server__max_requests=1)
    return proxy


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_of_what_was_refused_is_no_retry_of_its_twin_that_was_answered(
    small: Proxy, stream: bool
) -> None:
    small.backend.hold.clear()
    twin = asyncio.create_task(send(small, "one", 0, stream=stream))
    while not small.backend.requests:
        await asyncio.sleep(0.01)
    await refused(small, stream=stream)
    small.backend.hold.set()
    _, _, first = await twin
    _, _, second = await send(small, "one", 1, stream=stream)
    assert first != second and await statuses(small) == ["done", "done"]


async def test_a_retry_of_what_was_refused_does_not_wait_for_its_twin(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__max_requests=3)
    proxy.backend.hold.clear()
    twin, other = (asyncio.create_task(send(proxy, text, 0)) for text in ("one", "two"))
    while len(proxy.backend.requests) < 2:
        await asyncio.sleep(0.01)
    await refused(proxy)
    other.cancel()
    while not proxy.backend.cancelled:
        await asyncio.sleep(0.01)
    retried = asyncio.create_task(send(proxy, "one", 1))
    while len(proxy.backend.requests) < 3:
        await asyncio.sleep(0.01)
    proxy.backend.hold.set()
    assert (await twin)[2] != (await retried)[2]


async def test_a_part_whose_client_left_is_not_deleted_for_its_twins_retry(small: Proxy) -> None:
    small.backend.pause_s = 0.05
    first = await small.chat("one", headers={COUNT: "0"}, stream=True)
    while b"said" not in await first.content.readany():
        pass
    await refused(small, stream=True)
    first.close()
    while await statuses(small) != ["partial"]:
        await asyncio.sleep(0.01)
    small.backend.pause_s = 0.0
    await send(small, "one", 1, stream=True)
    assert await statuses(small) == ["done", "partial"]


async def test_of_two_equal_parts_neither_is_deleted_while_it_is_not_known_whose_retry_it_is(proxy: Proxy) -> None:
    proxy.backend.mood = "cut"
    for _ in range(2):
        await send(proxy, "one", 0, stream=True)
    proxy.backend.mood = "well"
    await send(proxy, "one", 1, stream=True)
    assert await statuses(proxy) == ["done", "partial", "partial"]


async def test_a_retry_whose_first_try_never_came_is_asked_afresh(proxy: Proxy) -> None:
    """Something before us refused it; its twin got its whole answer and has nothing to ask again."""
    _, _, twin = await send(proxy, "one", 0)
    _, _, retried = await send(proxy, "one", 1)
    assert twin != retried and await statuses(proxy) == ["done", "done"]


async def test_a_stream_whose_client_left_after_its_end_is_not_given_to_its_twin(proxy: Proxy) -> None:
    """As SDKs do: the last event is enough for them."""
    first = await proxy.chat("one", headers={COUNT: "0"}, stream=True)
    while b"[DONE]" not in await first.content.readany():
        pass
    first.close()
    _, _, retried = await send(proxy, "one", 1, stream=True)
    assert retried != first.headers["x-rl-completion-id"] and await statuses(proxy) == ["done", "done"]


async def test_a_retry_has_the_id_that_its_client_chose(proxy: Proxy) -> None:
    await send(proxy, "one", 0, headers={"x-rl-completion-id": "id-a"})
    _, _, id = await send(proxy, "one", 1, headers={"x-rl-completion-id": "id-b"})
    assert id == "id-b" and (await proxy.rate(completion_id="id-b", rating="good"))[0] == 201


async def test_the_real_sdk(proxy: Proxy) -> None:
    """openai-python against a backend that fails twice: one answer, one row."""
    client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=3)
    proxy.backend.fail_next = 2
    try:
        answer = await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hello"}])
    finally:
        await client.close()
    assert answer.choices[0].message.content == "You said: hello "
    assert len(proxy.backend.requests) == 3 and [c.new.id for c in await proxy.store.completions.page()] == [answer.id]


async def test_what_is_kept_has_an_end(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "KEPT_BYTES", 2000)

    async def ask(i: int, count: int) -> str:
        return (await send(proxy, f"{i} " + "word " * 100, count, headers={"idempotency-key": str(i)}))[2]

    ids = [await ask(i, 0) for i in range(5)]
    again = {i: await ask(i, 1) for i in (4, 0)}
    assert ids[4] == again[4] and ids[0] != again[0]
    assert await statuses(proxy) == ["done"] * 5  # the rows of those asked afresh were replaced
    monkeypatch.setattr(retries, "KEPT_S", -1.0)
    assert await ask(4, 2) != ids[4]


@pytest.mark.parametrize(("most", "is_whole"), [(10_000_000, True), (1_000_000, False)])
async def test_a_stream_is_kept_as_long_as_there_is_room_for_it(most: int, is_whole: bool) -> None:
    """It goes out whole in any case. What is not kept of it is no answer for a retry."""
    shares = Shares(most)

    async def handler(request: web.Request) -> web.StreamResponse:
        request[HELD_BYTES] = held = HeldBytes(shares, "a key")
        attempt = retries.Attempt(b"", 0, None, None)
        recording = attempt.stream(200, CIMultiDict())
        await recording.prepare(request)
        for _ in range(30):
            await recording.write(b"x" * 100_000)
        attempt.streamed()
        await recording.write_eof(b"end")
        assert attempt.answered is is_whole and attempt.arrived
        assert attempt.size == (3_000_003 if is_whole else 0) and attempt.size <= shares.in_use <= most
        held.end()
        assert shares.in_use == 0 and held.take(1) == "full"
        return recording

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as http, http.get(server.make_url("/")) as response:
        assert len(await response.read()) == 3_000_003


async def test_a_body_that_is_too_long_is_not_kept_for_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "LONGEST", 10)
    for body, size in ((b"x" * 10, 10), (b"x" * 11, 0)):
        attempt = retries.Attempt(b"", 0, None, None)
        attempt.keep(web.Response(body=body))
        assert attempt.size == size and attempt.answered is bool(size)
