from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from proxy.relay import relay
from proxy.relay.capture import pending_record, request_row
from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy

SOON_S = 60.0


async def stored(proxy: Proxy, status: str) -> str:
    """The id of the first completion that has this status."""
    async with asyncio.timeout(SOON_S):
        while True:
            for found in await proxy.store.completions.page():
                if (found.end.status if found.end else "pending") == status:
                    return found.new.id
            await asyncio.sleep(0.01)


async def metrics(proxy: Proxy) -> str:
    async with proxy.http.get("/metrics") as answer:
        return await answer.text()


async def settled(proxy: Proxy) -> None:
    """Returns when what a start has to write beside the answers is written."""
    async with asyncio.timeout(SOON_S):
        seen = -1
        while seen != proxy.store.commits:
            seen = proxy.store.commits
            await asyncio.sleep(0.2)


async def test_an_answer_that_comes_at_once_is_one_operation_with_its_question(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_record, "RECORD_S", 60.0)  # at once, however busy the machine is
    operations: list[str] = []

    def note(name: str) -> None:
        store = getattr(proxy.store.completions, name)

        def noted(*args: Any) -> Any:
            operations.append(name)
            return store(*args)

        monkeypatch.setattr(proxy.store.completions, name, noted)

    for name in ("begin", "finish", "record"):
        note(name)
    assert await proxy.say("hello") == "You said: hello "
    assert operations == ["record"]


async def test_a_question_whose_answer_takes_long_is_on_disk_before_it(proxy: Proxy, backend: FakeBackend) -> None:
    backend.hold.clear()
    asking = asyncio.create_task(proxy.say("hello"))
    id = await stored(proxy, "pending")
    backend.hold.set()
    assert await asking == "You said: hello "
    assert await stored(proxy, "done") == id


@pytest.mark.parametrize("beside_s", [0.0, 60.0], ids=["begun", "not yet begun"])
async def test_a_client_that_leaves_leaves_its_question(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, beside_s: float
) -> None:
    monkeypatch.setattr(pending_record, "RECORD_S", beside_s)
    backend.hold.clear()
    asking = asyncio.create_task(proxy.say("hello"))
    await asked(backend, 1)
    asking.cancel()
    id = await stored(proxy, "partial")
    backend.hold.set()
    found = await proxy.store.completions.get(id)
    assert found is not None and b"hello" in found.new.prompt[0].body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("beside_s", [0.0, 60.0], ids=["begun", "not yet begun"])
async def test_a_client_that_leaves_while_its_answer_is_committed_leaves_all_of_it(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, beside_s: float, stream: bool
) -> None:
    monkeypatch.setattr(pending_record, "RECORD_S", beside_s)
    await settled(proxy)
    backend.hold.clear()
    asking = asyncio.create_task(proxy.say("hello", stream=stream))
    async with asyncio.timeout(SOON_S):
        while not backend.requests:
            await asyncio.sleep(0.01)
        if not beside_s:
            await stored(proxy, "pending")
        taken, held = threading.Event(), threading.Event()
        proxy.store._writer.submit(lambda _: taken.set() or held.wait(SOON_S))
        while not taken.is_set():
            await asyncio.sleep(0.01)
        before = proxy.store._writer.waiting
        backend.hold.set()
        while proxy.store._writer.waiting == before:  # then the end of the answer waits for its commit
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0.1)  # in which the proxy sees that its client has left
        held.set()
        id = await stored(proxy, "done")
        while 'rlproxy_completions_total{status="done"} 1.0' not in await metrics(proxy):
            await asyncio.sleep(0.01)
    assert [row.new.id for row in await proxy.store.completions.page()] == [id]


@pytest.mark.parametrize("beside_s", [0.0, 60.0], ids=["begun", "not yet begun"])
async def test_each_of_several_choices_is_a_row(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, beside_s: float) -> None:
    monkeypatch.setattr(pending_record, "RECORD_S", beside_s)
    async with await proxy.chat("hello", n=2) as response:
        id = (await response.json())["id"]
    assert {found.new.id for found in await proxy.store.completions.page()} == {id, f"{id}.1"}
    assert all(found.end is not None and found.end.status == "done" for found in await proxy.store.completions.page())


@pytest.mark.parametrize("beside_s", [0.0, 60.0], ids=["begun", "not yet begun"])
async def test_a_completion_began_when_it_was_asked(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, beside_s: float
) -> None:
    monkeypatch.setattr(pending_record, "RECORD_S", beside_s)
    backend.hold.clear()
    before = time.time()
    asking = asyncio.create_task(proxy.say("hello"))
    await asked(backend, 1)
    await asyncio.sleep(0.3)
    backend.hold.set()
    await asking
    found = await proxy.store.completions.get(await stored(proxy, "done"))
    assert found is not None and found.end is not None and found.end.finished_at is not None
    assert before <= found.new.created_at <= found.end.finished_at - 0.2


async def test_an_answer_is_rated_while_its_first_second_runs(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_record, "RECORD_S", 60.0)
    monkeypatch.setattr(relay, "new_id", lambda: "rl-known")
    backend.hold.clear()
    asking = asyncio.create_task(proxy.say("hello"))
    while not backend.requests:
        await asyncio.sleep(0.01)
    async with proxy.http.post("/v1/feedback", json={"completion_id": "rl-known", "rating": "good"}) as response:
        assert response.status == 201, await response.text()
    backend.hold.set()
    await asking
    found = await proxy.store.completions.get("rl-known")
    assert found is not None and len(found.ratings) == 1 and found.status == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_title_that_is_asked_for_beside_its_question_is_a_side_turn(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Some agents ask for it at once. Whether it quotes the question is looked up when that has a row."""
    monkeypatch.setattr(pending_record, "RECORD_S", 3600.0)
    monkeypatch.setattr(request_row, "LOOK_S", 3600.0)  # on a busy machine the commit in between may take seconds
    backend.hold.clear()
    question = asyncio.create_task(proxy.chat("list my files", stream=stream))
    await asked(backend, 1)
    other = asyncio.create_task(proxy.say("hello", user="another"))
    await asked(backend, 2)
    title = asyncio.create_task(proxy.say("Name this.\n\nUser: list my files\n\nAssistant:", max_tokens=40))
    await asked(backend, 3)
    pending = await stored(proxy, "pending")
    backend.hold.set()
    await asyncio.gather(other, title)
    async with await question as answer:
        await answer.read()
        assert answer.headers["x-rl-completion-id"] == pending
    rows = [row.new for row in await proxy.store.completions.page()]
    found = {(row.user, row.id == pending): row.turn_rule for row in rows}
    assert found == {(None, True): "default", ("another", False): "default", (None, False): "quotation"}


async def asked(backend: FakeBackend, count: int) -> None:
    async with asyncio.timeout(SOON_S):
        while len(backend.requests) < count:
            await asyncio.sleep(0.01)
