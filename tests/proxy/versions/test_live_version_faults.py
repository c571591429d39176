"""Faults in the middle of a swap that need no process to die: who answers, what `status` says, what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.backends import openai_compatible
from proxy.versions import warm_up
from scripts.harness.in_process import Proxy
from store.errors import StoreFull
from store.file import meta
from tests.harness.polling import Polls
from tests.proxy.versions.test_live_version import answered_by


async def until_loaded(proxy: Proxy, *wanted: int) -> None:
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["loaded"] == [0, *wanted]:
            return
    pytest.fail(f"loaded: {(await proxy.get('/rl/status'))['loaded']}")


async def failed(proxy: Proxy, act: str, *words: str) -> None:
    """The act failed, and both the answer and `status` say these words."""
    status, body = await proxy.post(act)
    problem = (await proxy.get("/rl/status"))["problem"]
    assert status >= 400, body
    for word in words:
        assert word in body["error"]["message"] or word in problem, (body, problem)
        assert word in problem, problem


async def test_a_load_that_never_answers_is_given_up(
    proxy: Proxy, versions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_compatible, "CALL_S", 0.2)
    await proxy.post("/rl/promote/1")
    proxy.backend.hold_load.clear()
    trying = asyncio.create_task(proxy.post("/rl/promote/2"))
    assert await answered_by(proxy) == "v1"  # nobody waits for it
    assert (await trying)[0] == 503
    problem = (await proxy.get("/rl/status"))["problem"]
    assert (
        problem.startswith("v2 did not go live: ")
        and "did not answer POST /v1/load_lora_adapter within 0.2 s" in problem
    )
    assert problem.endswith("v1 still answers.") and await answered_by(proxy) == "v1"
    proxy.backend.hold_load.set()
    assert (await proxy.post("/rl/promote/2"))[1]["live"] == 2 and await answered_by(proxy) == "v2"
    assert (await proxy.get("/rl/status"))["problem"] is None


async def test_a_warm_up_that_never_answers_is_given_up(
    proxy: Proxy, versions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "WARM_UP_S", 0.2)
    proxy.backend.mood = "hang"
    await failed(
        proxy, "/rl/promote/1", "v1 did not go live", "warm-up", "within 0.2 s", "The base model still answers"
    )
    proxy.backend.mood = "well"
    assert await answered_by(proxy) == "base"


async def test_a_version_that_cannot_answer_does_not_stay_loaded(proxy: Proxy, versions: list[Path]) -> None:
    """Or it would be in the way, and worn as it is when its files have been put right."""
    proxy.backend.mood = "error"
    await failed(proxy, "/rl/promote/1", "v1 did not go live", "warm-up request was answered with 500", "out of memory")
    proxy.backend.mood = "well"
    await until_loaded(proxy)
    assert proxy.backend.adapters == {} and await answered_by(proxy) == "base"
    assert (await proxy.post("/rl/promote/1"))[0] == 200 and await answered_by(proxy) == "v1"


async def test_a_rollback_to_a_version_that_the_backend_lost(proxy: Proxy, versions: list[Path]) -> None:
    """A vLLM that was restarted beside us has neither version; nobody asked it for the previous one since."""
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    proxy.backend.adapters.clear()
    status, pointer = await proxy.post("/rl/rollback")
    assert status == 200 and pointer["live"] == 1, pointer
    assert await answered_by(proxy) == "v1" and await answered_by(proxy, "fake@v2") == "v2"


@pytest.mark.parametrize("stream", [False, True])
async def test_adapters_that_were_lost_are_back_before_the_answer(
    proxy: Proxy, versions: list[Path], stream: bool
) -> None:
    await proxy.post("/rl/promote/1")
    proxy.backend.adapters.clear()
    replies = await asyncio.gather(*(proxy.chat("x", stream=stream, model=m) for m in ("fake", "fake@v1", "fake@v3")))
    for reply in replies:
        body = await reply.read()
        assert reply.status == 200 and b"error" not in body and b"said" in body
    assert [reply.headers["x-rl-adapter"] for reply in replies] == ["v1", "v1", "v3"]


async def test_a_corrupt_file_during_the_swap(proxy: Proxy, versions: list[Path]) -> None:
    """Rot between two swaps: the version that answers keeps answering, also after the restart."""
    await proxy.post("/rl/promote/1")
    (versions[1] / "adapter_config.json").write_bytes(b"rot")
    await failed(proxy, "/rl/promote/2", "v2 did not go live", "v1 still answers")
    (versions[2] / "adapter_model.safetensors").unlink()
    await failed(proxy, "/rl/promote/3", "v3 did not go live", "v1 still answers")
    assert await answered_by(proxy) == "v1"
    response = await proxy.chat("x", model="fake@v2")  # and a pin says why, too
    assert response.status == 409 and "v2" in (await response.json())["error"]["message"], await response.text()
    await proxy.stop()
    await proxy.start()
    assert await answered_by(proxy) == "v1"


@pytest.mark.parametrize("model", ["fake", "fake@v2"])
async def test_a_live_version_that_rotted_gives_way_without_a_failed_request(
    proxy: Proxy, versions: list[Path], model: str
) -> None:
    """But for who asked for that very version. The proxy was started while the backend was down: nothing is loaded."""
    await proxy.post("/rl/promote/1")
    await proxy.post("/rl/promote/2")
    port = proxy.backend.port
    await proxy.stop()
    await proxy.backend.stop()
    (versions[1] / "adapter_model.safetensors").write_bytes(b"rot")
    await proxy.start()
    proxy.backend.adapters.clear()
    await proxy.backend.start(port)
    first = await proxy.chat("x", model=model)
    assert first.status == (200 if model == "fake" else 409), await first.text()
    assert await answered_by(proxy) == "v1"
    status = await proxy.get("/rl/status")
    assert status["live"] == 1 and "v2 is damaged, v1 answers instead" in status["problem"]


async def fill_up(proxy: Proxy) -> None:
    """To the last byte that SQLite has pages for."""
    await proxy.store._writer.submit(lambda db: db.execute("PRAGMA max_page_count = 1").fetchone())
    for size in (4000, 400, 40, 1):
        with contextlib.suppress(StoreFull):
            for _ in range(10_000):
                await proxy.store._writer.submit(lambda db, n=size: meta.audit(db, "me", "x" * n, {}))


async def test_a_full_disk_leaves_the_old_version(proxy: Proxy, versions: list[Path]) -> None:
    await proxy.post("/rl/promote/1")
    await fill_up(proxy)
    status, body = await proxy.post("/rl/promote/2")
    assert status == 507 and "v2 did not go live" in body["error"]["message"], body
    assert "v1 still answers" in (await proxy.get("/rl/status"))["problem"]
    assert await answered_by(proxy) == "v1" and (await proxy.store.versions.pointer()).live == 1
    await until_loaded(proxy, 1)
    await proxy.store._writer.submit(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    assert (await proxy.post("/rl/promote/2"))[1]["live"] == 2 and await answered_by(proxy) == "v2"


async def test_whoever_asked_for_the_swap_hangs_up(proxy: Proxy, versions: list[Path]) -> None:
    """While the pointer is being written: what is on disk and what answers are one version all the same."""
    may_go_on, writing = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stall(db: Any) -> None:
        loop.call_soon_threadsafe(writing.set)
        may_go_on.wait(20)

    stalled = proxy.store._writer.submit(stall)
    await writing.wait()
    async with aiohttp.ClientSession(base_url=proxy.url) as person:
        asking = asyncio.create_task(person.post("/rl/promote/1"))
        async for _ in Polls():  # it has been warmed up: now it waits for the disk
            if proxy.backend.requests and proxy.backend.requests[-1]["model"] == "fake@v1":
                break
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.wait({asking})
    await asyncio.sleep(0.2)
    may_go_on.set()
    await stalled
    await proxy.store.meta.set("after", 1)  # in order behind the pointer
    async for _ in Polls():
        live = (await proxy.get("/rl/status"))["live"]
        if live == (await proxy.store.versions.pointer()).live:
            break
    assert live == (await proxy.store.versions.pointer()).live == 1
    assert await answered_by(proxy) == "v1"
