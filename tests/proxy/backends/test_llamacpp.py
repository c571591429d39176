"""llama.cpp behind a whole proxy, with a fake llama-server: as a router, run by rlproxy, and plain."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.backends import llamacpp_managed
from scripts.fakes.llamacpp import FakeLlama
from scripts.harness.in_process import Proxy
from scripts.models import tiny
from tests.harness.llamacpp import PRESETS, make_proxy, said_by, servers, with_versions
from tests.harness.polling import Polls


async def test_a_router_swaps_and_rolls_back(routed: Proxy, router: FakeLlama) -> None:
    assert await said_by(routed) == "fake"
    for version in (1, 2, 3):
        assert (await routed.post(f"/rl/promote/{version}"))[0] == 200
        assert await said_by(routed) == f"fake@v{version}-{routed.mark}"
    assert set(router.loaded) == {"fake", f"fake@v2-{routed.mark}", f"fake@v3-{routed.mark}"}  # two versions stay warm
    assert router.presets is not None and "@v1" not in router.presets.read_text()
    await routed.post("/rl/rollback")
    assert await said_by(routed) == f"fake@v2-{routed.mark}" and await said_by(routed, "fake@base") == "fake"


async def test_swaps_on_a_full_router_break_no_stream(routed: Proxy, router: FakeLlama) -> None:
    router.pause_s = 0.02
    stop, replies = asyncio.Event(), 0

    async def client() -> None:
        nonlocal replies
        while not stop.is_set():
            response = await routed.chat("x", stream=True)
            body = (await response.read()).decode()
            label = response.headers["x-rl-adapter"]
            name = "fake" if label == "base" else f"fake@{label}-{routed.mark}"
            assert response.status == 200 and "error" not in body and body.endswith("data: [DONE]\n\n"), body
            assert body.count(f'"content": "{name} "') == 6, f"{label} answered {body}"
            replies += 1

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for version in (1, 2, 3, 1, 2):
        assert (await routed.post(f"/rl/promote/{version}"))[0] == 200
    stop.set()
    await asyncio.gather(*clients)
    assert replies > 5 and router.cut == []


async def test_a_version_the_router_cannot_load_leaves_no_trace(routed: Proxy, router: FakeLlama) -> None:
    router.refuse.add(f"fake@v1-{routed.mark}")
    status, body = await routed.post("/rl/promote/1")
    assert status == 502 and "did not load fake@v1" in body["error"]["message"]
    assert await said_by(routed) == "fake"
    assert router.presets is not None and router.presets.read_text() == PRESETS


async def test_a_router_that_lost_its_sections_gets_them_back(routed: Proxy, router: FakeLlama) -> None:
    await routed.post("/rl/promote/1")
    assert router.presets is not None
    router.presets.write_text(PRESETS)
    router.loaded.clear()
    router._read()
    assert await said_by(routed) == f"fake@v1-{routed.mark}"


async def test_two_homes_on_one_router_have_a_version_of_that_number_each(
    routed: Proxy, router: FakeLlama, tmp_path: Path
) -> None:
    await routed.post("/rl/promote/1")
    other = make_proxy(tmp_path / "other", url=router.url, presets=str(router.presets))
    await other.start()
    await with_versions(other, 1)
    assert (await other.post("/rl/promote/1"))[0] == 200
    for home in (routed, other):
        assert await said_by(home) == await said_by(home, "fake@v1") == f"fake@v1-{home.mark}"
        names = [m["id"] for m in (await home.get("/v1/models"))["data"]]
        assert [n for n in names if "@v" not in n] == ["fake", "fake@base"] and "fake@v1" in names
    begun = list(router.started)
    await other.stop()
    await other.start()
    assert await said_by(other) == f"fake@v1-{other.mark}" and router.started == begun, "it is not loaded once more"
    assert (await other.post("/rl/rollback"))[0] == 200 and await said_by(routed) == f"fake@v1-{routed.mark}"
    await other.stop()


async def test_a_router_with_too_few_places_is_said(routed: Proxy, router: FakeLlama) -> None:
    await routed.stop()
    router.places = 1
    await routed.start()
    status, body = await routed.post("/rl/promote/1")
    assert status == 501 and "1 models at once" in body["error"]["message"]
    assert await said_by(routed) == "fake"


async def test_a_conversion_that_fails_changes_nothing(routed: Proxy) -> None:
    routed.launcher.lacks = "lm_head cannot have a LoRA in llama.cpp"
    status, body = await routed.post("/rl/promote/1")
    assert status == 502 and "lm_head" in body["error"]["message"] and await said_by(routed) == "fake"


# A plain server


async def test_a_plain_server_says_what_to_restart_and_then_switches(tmp_path: Path) -> None:
    fake = FakeLlama()
    await fake.start()
    proxy = make_proxy(tmp_path / "home", url=fake.url)
    await proxy.start()
    await with_versions(proxy, 1)
    status, body = await proxy.post("/rl/promote/1")
    message = body["error"]["message"]
    assert status == 501 and "restart it with --lora-scaled" in message
    assert await said_by(proxy) == "fake"
    port = int(fake.url.rpartition(":")[2])
    await fake.stop()
    fake.loras = ["/other.gguf", message.partition("--lora-scaled ")[2].partition(":0")[0]]
    await fake.start(port)
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    # The same prompt by turns: a cache shared between scales would answer with what it was first read with.
    assert [await said_by(proxy, m) for m in ("fake", "fake@base", "fake")] == ["lora-1", "fake", "lora-1"]
    assert fake.requests[-1]["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    await proxy.stop()
    await fake.stop()


async def test_a_plain_servers_cache_is_never_read(tmp_path: Path) -> None:
    """Nor by the base model, when the one version that was asked for by its name is not needed any more."""
    fake = FakeLlama()
    await fake.start()
    proxy = make_proxy(tmp_path / "home", url=fake.url)
    await proxy.start()
    await with_versions(proxy, 1)
    message = (await proxy.post("/rl/promote/1"))[1]["error"]["message"]
    port = int(fake.url.rpartition(":")[2])
    await fake.stop()
    fake.loras = [message.partition("--lora-scaled ")[2].partition(":0")[0]]
    await fake.start(port)
    assert await said_by(proxy, "fake@v1") == "lora-0"
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["loaded"] == [0]:
            break
    assert await said_by(proxy) == "fake"
    await fake.stop()
    fake.loras = []  # and restarted without it
    await fake.start(port)
    response = await proxy.chat("who?", model="fake@v1")
    assert response.status == 501 and "restart it with" in (await response.json())["error"]["message"]
    assert await said_by(proxy) == "fake"
    await proxy.stop()
    await fake.stop()


# Run by rlproxy


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Proxy]:
    command = f"{sys.executable} -m scripts.fakes.llamacpp -m {tmp_path}/fake.gguf"
    proxy = make_proxy(tmp_path / "home", url="", command=command)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_a_process_for_each_version(managed: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_versions(managed, 1, 2)
    assert await said_by(managed) == "fake" and len(servers()) == 1
    assert (await managed.post("/rl/promote/1"))[0] == 200
    assert await said_by(managed) == "v0001" and await said_by(managed, "fake@base") == "fake"
    (tmp_path / "fake.gguf.broken").touch()
    status, body = await managed.post("/rl/promote/2")
    assert status == 502 and "did not start with fake@v2" in body["error"]["message"] and len(servers()) == 2
    monkeypatch.setattr(llamacpp_managed, "SPARE_GB", 1e6)
    status, body = await managed.post("/rl/promote/2")
    assert status == 502 and "GB are free" in body["error"]["message"] and await said_by(managed) == "v0001"


async def test_a_process_that_dies_comes_back_and_none_outlives_us(managed: Proxy) -> None:
    (pid,) = servers()
    os.kill(pid, signal.SIGKILL)
    async for _ in Polls():
        if servers() not in ([pid], []):
            break
    assert await said_by(managed) == "fake"
    await managed.stop()
    assert servers() == []
    await managed.start()


async def test_a_model_that_cannot_learn_here_costs_no_rating(tmp_path: Path, router: FakeLlama) -> None:
    """It is said from the start, and again where a run would begin; the ratings stay fresh."""
    proxy = make_proxy(tmp_path / "home", url=router.url, presets=str(router.presets))
    proxy.flags |= {"train.weights": str(tiny.make_unknown(tmp_path / "weights")), "train.start_at": "1"}
    await proxy.start()
    async with asyncio.timeout(30):
        while (status := await proxy.get("/rl/status"))["backend"]["obstacle"] is None:
            await asyncio.sleep(0.01)
    assert "This model is a mamba" in status["backend"]["obstacle"] and status["backend"]["layers"] is None
    await (await proxy.chat("q")).read()
    await proxy.rate(completion_id="last", rating="good")
    code, body = await proxy.post("/rl/train")
    assert "This model is a mamba" in str(body), code
    assert await proxy.store.runs.recent(limit=1) == [], "no run has claimed the rating"
    await proxy.stop()


async def test_the_layers_that_train_are_told(tmp_path: Path, router: FakeLlama) -> None:
    proxy = make_proxy(tmp_path / "home", url=router.url, presets=str(router.presets))
    proxy.flags |= {"train.weights": str(tiny.make("deepseek_v3", tmp_path / "weights"))}
    await proxy.start()
    async with asyncio.timeout(30):
        while (layers := (await proxy.get("/rl/status"))["backend"]["layers"]) is None:
            await asyncio.sleep(0.01)
    assert layers.startswith("deepseek_v3: o_proj; without") and "q_a_proj" in layers
    await proxy.stop()
