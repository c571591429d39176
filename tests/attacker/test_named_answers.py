"""Somebody whose short request names long stored answers: they are weighed before they are read.

Before, 30 requests that each named 40 answers of 4 MB took 4 GB of memory to be refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.relay.capture.side_turns import CALLING, LONGEST_CALL
from proxy.relay.previous_response import PreviousResponses
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedAnswer, ScriptedServer
from scripts.harness.in_process import Proxy
from scripts.harness.records import end, new
from store.captured import completions
from store.captured.completions import CompletionStore
from store.captured.items import ItemStore
from store.copies import export
from store.records import Message, Requester
from store.store import Store

MB = 1 << 20
HELD = 16 * MB
RESPONSE = {
    "object": "response",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "id": "ITEM",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "w " * (MB // 4)}],
        }
    ],
}


def answers(count: int) -> list[ScriptedAnswer]:
    text = json.dumps(RESPONSE)
    bodies = [text.replace("ITEM", f"it_{n}").encode() for n in range(count)]
    return [ScriptedAnswer("/v1/responses", 200, {"content-type": "application/json"}, [body]) for body in bodies]


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    server = ScriptedServer(answers(6))
    await server.start()
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(
        backend__kind="openai", backend__url=server.url, backend__model="m",
        server__max_body_bytes=2 * MB, server__max_held_bytes=HELD,
    )  # fmt: skip
    yield proxy
    await proxy.stop()
    await server.stop()


async def ask(proxy: Proxy, path: str = "/v1/responses", **request: Any) -> tuple[int, bytes, str]:
    async with proxy.http.post(path, json={"model": "m", **request}) as response:
        return response.status, await response.read(), response.headers.get("x-rl-completion-id", "")


async def said(proxy: Proxy, count: int, path: str = "/v1/responses") -> list[str]:
    """The ids of so many stored answers of half a megabyte each."""
    ids = [(await ask(proxy, path, input=f"say {n}"))[2] for n in range(count)]
    for id in ids:
        while (completion := await proxy.store.completions.get(id)) is None or completion.end is None:
            await asyncio.sleep(0.01)
    return ids


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read of stored answers, by names of methods."""
    names: list[str] = []

    def watch(part: Any, name: str) -> None:
        method = getattr(part, name)

        async def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return await method(self, *args, **kwargs)

        monkeypatch.setattr(part, name, noted)

    for part, name in ((ItemStore, "answers"), (ItemStore, "replies"), (CompletionStore, "get")):
        watch(part, name)
    return names


async def test_answers_that_are_too_long_together_are_not_read(proxy: Proxy, reads: list[str]) -> None:
    ids = await said(proxy, 6)
    reads.clear()
    named = [{"type": "item_reference", "id": f"msg_{id}"} for id in ids]
    status, raw, _ = await ask(proxy, input=[*named, {"role": "user", "content": "more"}])
    assert status == 413 and b"earlier answers that it names" in raw and not reads
    status, _, _ = await ask(proxy, input=[*named[:2], {"role": "user", "content": "more"}])
    assert status == 200 and reads[0] == "answers"


async def test_a_conversation_that_has_become_too_long_is_not_read(proxy: Proxy, reads: list[str]) -> None:
    previous, statuses = (await said(proxy, 1))[0], []
    for _ in range(5):
        reads.clear()
        status, raw, id = await ask(proxy, input="go on", previous_response_id=previous)
        statuses.append(status)
        if status == 413:
            assert b"earlier answers that it names" in raw and not reads
            break
        previous = id
    assert statuses == [200, 200, 200, 413]


async def test_items_of_the_backend_that_are_too_long_stay_references(proxy: Proxy, reads: list[str]) -> None:
    await said(proxy, 6)
    reads.clear()
    named = [{"type": "item_reference", "id": f"it_{n}"} for n in range(6)]
    status, _, _ = await ask(proxy, input=[*named, {"role": "user", "content": "more"}])
    assert status == 200 and "replies" not in reads
    status, _, _ = await ask(proxy, input=[*named[:2], {"role": "user", "content": "more"}])
    assert status == 200 and "replies" in reads


async def test_answers_that_are_asked_for_again_share_what_may_be_held(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, waits = (await said(proxy, 1))[0], asyncio.Event()
    read = PreviousResponses.completion
    asked = 0

    async def waited(self: PreviousResponses, *args: Any) -> Any:
        nonlocal asked
        completion = await read(self, *args)
        asked += 1
        await waits.wait()
        return completion

    monkeypatch.setattr(PreviousResponses, "completion", waited)

    async def get() -> tuple[int, bytes]:
        async with proxy.http.get(f"/v1/responses/{id}") as response:
            return response.status, await response.read()

    requests = [asyncio.create_task(get()) for _ in range(16)]
    async with asyncio.timeout(30):
        while asked + sum(request.done() for request in requests) < 16:
            await asyncio.sleep(0.01)
    waits.set()
    answers = await asyncio.gather(*requests)
    assert {status for status, _ in answers} == {200, 429}
    assert all(b"server.max_held_bytes" in raw for status, raw in answers if status == 429)
    assert (await get())[0] == 200


async def test_long_answers_are_not_searched_for_the_words_of_a_subagent(tmp_path: Path) -> None:
    """A hundred of the newest are, and each may be as long as a backend likes."""
    store = await Store.open(tmp_path)
    call = {"function": {"name": "task", "arguments": {"prompt": "do " * 1000}}}
    for id, count in (("short", 1), ("long", 100)):
        reply = Message("assistant", json.dumps({"content": "", "tool_calls": [call] * count}).encode())
        store.completions.begin([new(id)])
        await store.completions.finish([replace(end(id), reply=reply)])
    calls = await store.answers.calls_to(Requester(None, None), limit=CALLING, longest=LONGEST_CALL)
    assert [id for id, _ in calls] == ["short"]
    await store.close()


async def test_a_response_in_the_background_is_not_anothers_by_the_backends_id(tmp_path: Path) -> None:
    """Some servers count their ids, and rlproxy knows whose each is."""
    queued = {"id": "resp_7", "object": "response", "status": "queued", "output": []}
    server = ScriptedServer(
        [ScriptedAnswer("", 200, {"content-type": "application/json"}, [json.dumps(queued).encode()])]
    )
    await server.start()
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="openai", backend__url=server.url, backend__model="m")
    local = {"authorization": f"Bearer {proxy.local}"}
    keys = {}
    for name in ("ann", "eve"):
        async with proxy.http.post("/rl/keys", json={"name": name, "role": "use"}, headers=local) as response:
            keys[name] = {"authorization": f"Bearer {(await response.json())['key']}"}
    body = {"model": "m", "input": "hi", "background": True}
    async with proxy.http.post("/v1/responses", json=body, headers=keys["ann"]) as response:
        assert response.status == 200
    server.forget()

    async def status(method: str, path: str, name: str, **request: Any) -> int:
        async with proxy.http.request(method, path, headers=keys[name], **request) as response:
            return response.status

    going_on = {"model": "m", "input": "and?", "previous_response_id": "resp_7"}
    assert await status("GET", "/v1/responses/resp_7", "eve") == 404
    assert await status("POST", "/v1/responses/resp_7/cancel", "eve") == 404
    assert await status("DELETE", "/v1/responses/resp_7", "eve") == 404
    assert await status("POST", "/v1/responses", "eve", json=going_on) == 400
    assert not server.requests
    assert await status("GET", "/v1/responses/resp_7", "ann") == 200
    assert await status("POST", "/v1/responses", "ann", json=going_on) == 200
    await proxy.stop()
    await server.stop()


async def test_a_response_that_was_final_stays_as_it_is_stored(tmp_path: Path) -> None:
    """A server that changes it would have a person rate another text than they see."""

    def answer(method: str, status: str, text: str) -> ScriptedAnswer:
        part = {"type": "output_text", "text": text}
        output = [{"type": "message", "id": "it_1", "role": "assistant", "content": [part]}] if text else []
        body = {"id": "resp_7", "object": "response", "status": status, "output": output}
        path = "/v1/responses" if method == "POST" else "/v1/responses/resp_7"
        return ScriptedAnswer(path, 200, {"content-type": "application/json"}, [json.dumps(body).encode()])

    polls = [("completed", "one"), ("completed", "one"), ("completed", "two"), ("in_progress", ""), ("failed", "")]
    server = ScriptedServer([answer("POST", "queued", ""), *(answer("GET", *poll) for poll in polls)])
    await server.start()
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="openai", backend__url=server.url, backend__model="m")
    async with proxy.http.post("/v1/responses", json={"model": "m", "input": "hi", "background": True}) as response:
        id = (await response.json())["id"]
    seen = []
    for _ in polls:
        body = await proxy.get(f"/v1/responses/{id}")
        seen.append((body["status"], [part["text"] for item in body["output"] for part in item["content"]]))
    assert seen == [("completed", ["one"])] * len(polls)
    await proxy.stop()
    await server.stop()


@pytest.mark.parametrize(
    "path", ["/rl/completions?limit=100", "/rl/completions/{id}", "/rl/episodes/ep", "/episodes/ep"]
)
async def test_lists_of_answers_share_what_may_be_held(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """One page of a hundred may be gigabytes."""
    async with proxy.http.post("/rl/episodes", json={"id": "ep"}) as response:
        assert response.status == 201
    id, waits = (await said(proxy, 6, "/s/ep/v1/responses"))[0], asyncio.Event()
    asked = 0
    for name in ("page", "get", "many"):
        read = getattr(CompletionStore, name)

        async def waited(self: CompletionStore, *args: Any, read: Any = read, **query: Any) -> Any:
            nonlocal asked
            asked += 1
            await waits.wait()
            return await read(self, *args, **query)

        monkeypatch.setattr(CompletionStore, name, waited)

    async def get() -> tuple[int, bytes]:
        async with proxy.http.get(path.format(id=id)) as response:
            return response.status, await response.read()

    requests = [asyncio.create_task(get()) for _ in range(16)]
    async with asyncio.timeout(30):
        while asked + sum(request.done() for request in requests) < 16:
            await asyncio.sleep(0.01)
    waits.set()
    answers = await asyncio.gather(*requests)
    assert {200} < {status for status, _ in answers} <= {200, 429, 503}
    assert all(b"server.max_held_bytes" in raw for status, raw in answers if status != 200)
    assert (await get())[0] == 200


async def test_an_export_reads_few_long_answers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody with a key may have stored fifty that are together more than the memory."""
    counts: list[int] = []
    select = completions.select

    async def counted(reader: Any, condition: str, values: Any) -> Any:
        rows = await select(reader, condition, values)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(completions, "select", counted)
    monkeypatch.setattr(export, "PAGE_BYTES", 1 << 16)
    store = await Store.open(tmp_path)
    for n in range(20):
        reply = Message("assistant", json.dumps({"content": f"{n} " * (20_000 if n < 10 else 1)}).encode())
        store.completions.begin([new(f"r{n}")])
        await store.completions.finish([replace(end(f"r{n}"), reply=reply)])
    assert [row["id"] async for row in store.transfer.export()] == [f"r{n}" for n in range(20)]
    assert max(counts[:5]) <= 2 and max(counts) >= 10
    await store.close()
