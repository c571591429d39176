"""Ollama and LM Studio on a GPU with room for the model or the run: what is put out, and comes back as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from config.settings import load
from proxy.backends import lmstudio, ollama
from proxy.core.errors import Unsupported
from proxy.training import gpu_sharing
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.lmstudio import FakeLMStudio
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import said_by, with_versions
from tests.harness.ollama import NEW, OLD, make_proxy
from tests.harness.runs import rated, until
from tests.proxy.backends import test_lmstudio
from tests.proxy.training.test_gpu_sharing import awake, waiting

pytestmark = pytest.mark.usefixtures("quick_sharing")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ollama, lmstudio):
        monkeypatch.setattr(module, "POLL_S", 0.01)
        monkeypatch.setattr(module, "FREED_S", 0.1)


@pytest.fixture(params=[OLD, NEW])
async def an_ollama(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeOllama]:
    fake = FakeOllama(tmp_path / "ollama", request.param)
    fake.unload_s = 0.03  # it says yes before the memory is free
    fake.add("another:latest", fake.keep(b"GGUF the person's other model"))
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def studio(tmp_path: Path) -> AsyncIterator[FakeLMStudio]:
    fake = FakeLMStudio(tmp_path / "models")
    other = fake.folder / "someone" / "Another-GGUF" / "another.gguf"
    other.parent.mkdir()
    other.write_bytes(b"GGUF of another size")
    fake.instances["another"], fake.contexts["another"] = "another", 2048
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def over_ollama(tmp_path: Path, an_ollama: FakeOllama) -> AsyncIterator[Proxy]:
    more = {"train.share_gpu": True, "backend.model": "fake"}
    proxy = make_proxy(tmp_path / "home", an_ollama.url, **more)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def over_studio(tmp_path: Path, studio: FakeLMStudio) -> AsyncIterator[Proxy]:
    more = {"train.share_gpu": True, "backend.model": "fake"}
    proxy = test_lmstudio.make_proxy(tmp_path / "home", studio, **more)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def begun(proxy: Proxy) -> None:
    """A run is under way."""
    await proxy.post("/rl/resume")
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while not proxy.launcher.started:
            await asyncio.sleep(0.01)


async def two_versions(proxy: Proxy) -> None:
    await with_versions(proxy, 1, 2)
    for version in (1, 2):
        status, body = await proxy.post(f"/rl/promote/{version}")
        assert status == 200, body


async def compared(proxy: Proxy) -> None:
    """The base has been asked what the weights are compared with; that loads it."""
    await proxy.post("/rl/resume")
    await rated(proxy, 1)
    async with asyncio.timeout(10):
        while (await proxy.get("/rl/status"))["match"]["state"] == "unasked":
            await asyncio.sleep(0.01)


# Ollama


async def test_ollama_gives_its_memory_back_and_takes_it_again(over_ollama: Proxy, an_ollama: FakeOllama) -> None:
    await two_versions(over_ollama)
    assert await said_by(over_ollama, "fake@base") == "fake:latest"
    an_ollama.loaded.append("another:latest")
    over_ollama.launcher.takes_s, over_ollama.launcher.outcome = 0.5, "rejected"
    await begun(over_ollama)
    assert an_ollama.loaded == ["another:latest"], "all of ours were out before the trainer started, and nobody else's"
    answer = asyncio.create_task(said_by(over_ollama))
    await waiting(over_ollama, 1)
    assert an_ollama.loaded == ["another:latest"]
    assert await answer == f"fake-rl:v2-{over_ollama.mark}"
    await until(over_ollama, ended="rejected")
    back = (
        {"fake:latest", f"fake-rl:v1-{over_ollama.mark}", f"fake-rl:v2-{over_ollama.mark}"}
        if an_ollama.version == NEW
        else {f"fake-rl:v2-{over_ollama.mark}"}
    )
    assert set(an_ollama.loaded) == {"another:latest", *back}
    assert an_ollama.cut == [] and len(an_ollama.created) == 2


async def test_what_a_run_made_is_live_in_ollama_after_it(over_ollama: Proxy, an_ollama: FakeOllama) -> None:
    await rated(over_ollama, 4)
    await until(over_ollama, live=1)
    assert (
        await said_by(over_ollama) == f"fake-rl:v1-{over_ollama.mark}"
        and f"fake-rl:v1-{over_ollama.mark}" in an_ollama.loaded
    )


async def test_a_base_that_ollama_had_dropped_is_not_loaded_beside_its_versions(
    over_ollama: Proxy, an_ollama: FakeOllama
) -> None:
    """With room for one, each that is loaded puts another one out."""
    await two_versions(over_ollama)
    await compared(over_ollama)
    an_ollama.loaded = [f"fake-rl:v2-{over_ollama.mark}"]
    over_ollama.launcher.hold = True
    await begun(over_ollama)
    assert an_ollama.loaded == []
    await over_ollama.post("/rl/pause")
    await awake(over_ollama)
    assert "fake:latest" not in an_ollama.loaded and [body for _, body in an_ollama.asked if body.get("keep_alive")]


async def test_no_run_starts_while_ollama_keeps_its_memory(over_ollama: Proxy, an_ollama: FakeOllama) -> None:
    an_ollama.unload_s, an_ollama.mood = 0.0, "clings"
    await rated(over_ollama, 4)
    async with asyncio.timeout(10):
        while "Ollama still has fake in memory" not in (await _waits_for(over_ollama) or ""):
            await asyncio.sleep(0.01)
    assert not over_ollama.launcher.started
    assert await said_by(over_ollama) == "fake:latest", "and nobody is kept waiting for it"
    an_ollama.mood = "well"
    await until(over_ollama, live=1)


async def test_an_ollama_that_is_gone_when_a_run_ends_is_woken_when_it_is_back(
    over_ollama: Proxy, an_ollama: FakeOllama
) -> None:
    over_ollama.launcher.takes_s = 0.3
    await begun(over_ollama)
    port = int(an_ollama.url.rpartition(":")[2])
    await an_ollama.stop()
    async with asyncio.timeout(10):
        while "did not wake" not in ((await over_ollama.get("/rl/status"))["problem"] or ""):
            await asyncio.sleep(0.01)
    await an_ollama.start(port)
    assert (await awake(over_ollama))["problem"] is None
    await until(over_ollama, live=1)


async def _waits_for(proxy: Proxy) -> str | None:
    found: str | None = (await proxy.get("/rl/status"))["training"]["waits_for"]
    return found


# LM Studio


async def test_lm_studio_comes_back_as_it_was(over_studio: Proxy, studio: FakeLMStudio) -> None:
    await two_versions(over_studio)
    studio.instances["fake:2"], studio.contexts["fake:2"] = "fake", 512  # another one of the person's
    before, contexts = dict(studio.instances), dict(studio.contexts)
    over_studio.launcher.takes_s, over_studio.launcher.outcome = 0.5, "rejected"
    await begun(over_studio)
    assert set(studio.instances) == {"another"}
    answer = asyncio.create_task(said_by(over_studio))
    await waiting(over_studio, 1)
    assert set(studio.instances) == {"another"}
    assert await answer == f"fake-rl-v2-{over_studio.mark}"
    assert studio.instances == before and {i: studio.contexts[i] for i in before} == contexts
    assert {"model": "fake", "context_length": 8192, "flash_attention": True} in studio.loads
    assert not (over_studio.home / "lmstudio-put-out.json").exists()
    await until(over_studio, ended="rejected")


async def test_what_a_run_made_is_live_in_lm_studio_after_it(over_studio: Proxy, studio: FakeLMStudio) -> None:
    await rated(over_studio, 4)
    await until(over_studio, live=1)
    assert await said_by(over_studio) == f"fake-rl-v1-{over_studio.mark}" and {
        "fake",
        f"fake-rl-v1-{over_studio.mark}",
    } <= set(studio.instances)


async def test_versions_keep_their_context_where_the_persons_own_is_not_loaded(
    over_studio: Proxy, studio: FakeLMStudio
) -> None:
    await two_versions(over_studio)
    await compared(over_studio)
    del studio.instances["fake"]
    over_studio.launcher.hold = True
    await begun(over_studio)
    await over_studio.post("/rl/pause")
    await awake(over_studio)
    assert (
        set(studio.instances) == {"another", f"fake-rl-v1-{over_studio.mark}", f"fake-rl-v2-{over_studio.mark}"}
        and studio.contexts[f"fake-rl-v2-{over_studio.mark}"] == 8192
    )


async def test_a_killed_rlproxy_knows_how_the_model_was_loaded(over_studio: Proxy, studio: FakeLMStudio) -> None:
    over_studio.launcher.hold = True
    await begun(over_studio)
    studio.refuse = "fake"  # so that the stop leaves what a kill leaves
    await over_studio.stop()
    assert "fake" not in studio.instances
    assert json.loads((over_studio.home / "lmstudio-put-out.json").read_text())["fake"]["context_length"] == 8192
    studio.refuse = ""
    over_studio.launcher.hold = False
    await over_studio.start()
    await awake(over_studio)
    assert studio.contexts["fake"] == 8192 and "fake" in studio.instances


async def test_no_run_starts_while_lm_studio_keeps_its_memory(over_studio: Proxy, studio: FakeLMStudio) -> None:
    studio.clings = True
    await rated(over_studio, 4)
    async with asyncio.timeout(10):
        while "LM Studio still has fake loaded" not in (await _waits_for(over_studio) or ""):
            await asyncio.sleep(0.01)
    assert not over_studio.launcher.started and await said_by(over_studio) == "fake"
    assert list(studio.instances.values()).count("fake") == 1, "what was not put out is not loaded a second time"
    studio.clings = False
    await until(over_studio, live=1)


async def test_an_instance_that_would_lose_its_name_is_left_alone(tmp_path: Path, studio: FakeLMStudio) -> None:
    studio.instances = {"mine": "fake"}
    studio.contexts["mine"] = 4096
    flags = test_lmstudio.make_proxy(tmp_path / "home", studio, **{"backend.model": "mine"}).flags
    backend = lmstudio.LMStudio(load(flags, environ={}).settings, FakeLauncher())
    async with aiohttp.ClientSession() as http:
        await backend.start(http, test_lmstudio.nothing)
        with pytest.raises(Unsupported, match=r"set backend\.model to fake"):
            await backend.free()
    assert studio.instances == {"mine": "fake"}


# Whose server it is


@pytest.mark.parametrize("usual", [False, True])
async def test_a_stop_wakes_an_ollama_also_at_its_usual_port(
    tmp_path: Path, an_ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch, usual: bool
) -> None:
    monkeypatch.setattr(ollama, "usual_url", lambda kind: an_ollama.url)
    more = {"train.share_gpu": True, "backend.model": "fake"}
    proxy = make_proxy(tmp_path / "home", "" if usual else an_ollama.url, **more)
    await proxy.start()
    proxy.launcher.hold = True
    await begun(proxy)
    assert an_ollama.loaded == [] and gpu_sharing.LEAVE_S > 1
    await proxy.stop()
    assert an_ollama.loaded == ["fake:latest"]
