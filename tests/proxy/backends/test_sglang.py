"""SGLang behind a whole proxy, with a fake of it: the real one needs CUDA."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.fakes.sglang import FakeSGLang
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import make_proxy, said_by, with_versions


@pytest.fixture
async def server() -> AsyncIterator[FakeSGLang]:
    fake = FakeSGLang()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def served(tmp_path: Path, server: FakeSGLang) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", kind="sglang", url=server.url)
    await proxy.start()
    await with_versions(proxy, 1, 2, 3)
    yield proxy
    await proxy.stop()


async def test_it_swaps_and_rolls_back(served: Proxy, server: FakeSGLang) -> None:
    assert await said_by(served) == "fake"
    for version in (1, 2, 3):
        assert (await served.post(f"/rl/promote/{version}"))[0] == 200
        assert await said_by(served) == f"fake@v{version}-{served.mark}"
    assert server.requests[-1]["model"] == f"fake:fake@v3-{served.mark}"
    assert set(server.adapters) == {f"fake@v2-{served.mark}", f"fake@v3-{served.mark}"}  # two versions stay loaded
    assert server.adapters[f"fake@v3-{served.mark}"].endswith("v0003")
    assert (await served.post("/rl/rollback"))[1]["live"] == 2
    assert await said_by(served) == f"fake@v2-{served.mark}" and await said_by(served, "fake@base") == "fake"
    answer = await (await served.chat("who?", model="fake@v2")).json()
    assert answer["model"] == "fake@v2"  # as the client asked, without the colon


async def test_streams_end_on_the_version_they_began_with(served: Proxy, server: FakeSGLang) -> None:
    server.pause_s = 0.02
    stop, replies = asyncio.Event(), 0

    async def client() -> None:
        nonlocal replies
        while not stop.is_set():
            response = await served.chat("who?", stream=True)
            raw = (await response.read()).decode()
            assert response.status == 200 and raw.endswith("data: [DONE]\n\n")
            events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
            words = {event["choices"][0]["delta"].get("content") for event in events} - {None}
            label = response.headers["x-rl-adapter"]
            assert words == {"fake " if label == "base" else f"fake@{label}-{served.mark} "}
            replies += 1

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for act in ("promote/1", "promote/2", "promote/3", "rollback", "promote/base"):
        await asyncio.sleep(0.1)
        assert (await served.post(f"/rl/{act}"))[0] == 200
    stop.set()
    await asyncio.gather(*clients)
    assert replies > 8


async def test_a_server_that_lost_its_adapters_is_given_them_back(served: Proxy, server: FakeSGLang) -> None:
    await served.post("/rl/promote/1")
    port = int(server.url.rpartition(":")[2])
    await server.stop()
    await server.start(port)
    assert await said_by(served) == f"fake@v1-{served.mark}"
    response = await served.chat("who?", stream=True)
    assert response.status == 200 and f"fake@v1-{served.mark}" in await response.text()


async def test_a_version_of_another_home_keeps_its_place(served: Proxy, server: FakeSGLang, tmp_path: Path) -> None:
    """Both are alive: neither answers with the other's version of that number, nor takes it out."""
    other = make_proxy(tmp_path / "other", kind="sglang", url=server.url)
    await other.start()
    await with_versions(other, 1)
    for home in (served, other):
        assert (await home.post("/rl/promote/1"))[0] == 200
    for home in (served, other):
        assert await said_by(home) == f"fake@v1-{home.mark}"
        assert server.adapters[f"fake@v1-{home.mark}"].startswith(str(home.home))
    await other.stop()


async def test_a_server_without_lora_says_how_to_start_it(served: Proxy, server: FakeSGLang) -> None:
    server.lora = False
    status, body = await served.post("/rl/promote/1")
    assert status == 501 and "--enable-lora --max-lora-rank" in body["error"]["message"]
    assert await said_by(served) == "fake"


async def test_a_rank_over_the_servers_is_said(served: Proxy, server: FakeSGLang) -> None:
    server.largest_rank = False
    status, body = await served.post("/rl/promote/1")
    assert status == 502 and "--max-lora-rank" in body["error"]["message"]
    assert await said_by(served) == "fake"
    assert "--max-lora-rank" in (await served.get("/rl/status"))["problem"]


async def test_a_key_that_does_not_fit_is_said(served: Proxy, server: FakeSGLang) -> None:
    server.key = "other"
    status, body = await served.post("/rl/promote/1")
    assert status == 502 and "401" in body["error"]["message"]
