"""What vLLM is asked besides completions: whether a run's adapter would get in, and to give its GPU back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from config.sections import BackendSection
from proxy.backends.replicas.replicas import Replicas
from proxy.backends.vllm import VLLM
from proxy.core.errors import BackendDown, Unsupported
from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy


@pytest.fixture
async def vllm(backend: FakeBackend) -> AsyncIterator[VLLM]:
    async with aiohttp.ClientSession() as http:
        server = VLLM(BackendSection(kind="vllm", url=backend.url))
        await server.start(http, asyncio.Event().wait)  # type: ignore[arg-type]
        yield server


async def test_a_name_that_somebody_else_left_there_is_loaded_anew(
    backend: FakeBackend, vllm: VLLM, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    backend.adapters["fake@v1"] = "/another/home/v0001"
    for _ in range(2):
        await vllm.load("fake@v1", tmp_path)
    assert backend.adapters == {"fake@v1": str(tmp_path)} and backend.unloaded == ["fake@v1"]


@pytest.mark.parametrize(
    ("lora", "rank", "says"),
    [
        (True, 16, None),
        (True, 64, None),
        (True, 65, "takes up to 64: start it with --max-lora-rank 128, or set train.overrides.rank to 64"),
        (True, 1000, "takes up to 64: set train.overrides.rank to 64"),
        (
            False,
            16,
            "takes no adapters: start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora "
            "--generation-config vllm`",
        ),
        (None, 16, "has no routes to load an adapter: start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm"),
    ],
)
async def test_what_it_would_say_to_an_adapter(
    backend: FakeBackend, vllm: VLLM, tmp_path: Path, lora: bool | None, rank: int, says: str | None
) -> None:
    backend.lora = lora
    why = await vllm.check(rank, tmp_path / "adapters")
    assert why is None if says is None else says in str(why) and backend.url in str(why)
    assert backend.adapters == {} and list((tmp_path / "adapters").iterdir()) == [], "nothing is loaded, nothing left"


async def test_a_server_that_cannot_read_our_files(
    backend: FakeBackend, vllm: VLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "root", Path("/in/a/container"))
    why = await vllm.check(16, tmp_path)
    assert f"cannot read {tmp_path}: give it that folder under the same path" in str(why)


async def test_a_folder_that_nobody_can_write(vllm: VLLM, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "no adapter can be written" in str(await vllm.check(16, tmp_path / "file"))


async def test_words_that_are_not_understood_forbid_nothing(
    backend: FakeBackend, vllm: VLLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.max_rank = 10**9  # then it is `refuse_load` that answers, in other words
    backend.refuse_load = True
    assert await vllm.check(16, tmp_path) is None
    assert "does not say what rank" in capsys.readouterr().out


async def test_no_answer_is_no_refusal(backend: FakeBackend, vllm: VLLM, tmp_path: Path) -> None:
    await backend.stop()
    with pytest.raises(BackendDown):
        await vllm.check(16, tmp_path)


async def test_nothing_trains_what_would_not_get_in(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status, doctor's source, says it at once; four ratings start no run; then somebody restarts vLLM."""
    monkeypatch.setattr("proxy.training.adapter_check.RETRY_S", 0.1)
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.05)
    backend.max_rank = 8  # restarted since rlproxy looked: a run asks again
    for n in range(4):
        await proxy.chat(f"q{n}")
        await proxy.rate(completion_id="last", rating="good" if n % 2 else "bad")
    async with asyncio.timeout(10):
        while (status := await proxy.get("/rl/status"))["backend"]["obstacle"] is None:
            await asyncio.sleep(0.02)
    assert "rank 16" in status["backend"]["obstacle"] and "--max-lora-rank 16" in status["training"]["waits_for"]
    assert status["ratings"]["fresh"] == 4 and proxy.launcher.started == []
    code, body = await proxy.post("/rl/train")
    assert code == 409 and "--max-lora-rank 16" in body["error"]["message"]
    backend.max_rank = 16
    async with asyncio.timeout(10):
        while (await proxy.get("/rl/status"))["live"] != 1:
            await asyncio.sleep(0.02)
    assert list(backend.adapters) == ["fake@v1"]


async def test_a_run_that_somebody_asks_for_asks_anew(proxy: Proxy, backend: FakeBackend) -> None:
    await proxy.chat("q")
    await proxy.rate(completion_id="last", rating="good")
    assert (await proxy.get("/rl/status"))["backend"]["obstacle"] is None
    backend.lora = False  # restarted otherwise since
    code, body = await proxy.post("/rl/train")
    assert code == 409 and "vllm serve MODEL --enable-lora" in body["error"]["message"]
    assert "--enable-lora" in (await proxy.get("/rl/status"))["backend"]["obstacle"]


async def test_a_silent_backend_keeps_no_status_waiting(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.adapter_check.CHECK_S", 0.1)
    monkeypatch.setattr("proxy.training.adapter_check.RETRY_S", 0.0)
    backend.max_rank = 8
    await proxy.post("/rl/train")  # 409 for want of ratings or of a rank: it has been asked
    refused = (await proxy.get("/rl/status"))["backend"]["obstacle"]
    backend.silent = True
    assert refused and (await proxy.get("/rl/status"))["backend"]["obstacle"] == refused, "nothing new was said"


async def test_it_gives_its_gpu_back_and_takes_it_again(backend: FakeBackend, vllm: VLLM) -> None:
    backend.sleeps = False
    await vllm.free()
    assert backend.sleeps and ("/sleep?level=1&mode=wait", {}) in backend.asked
    await vllm.reclaim()
    assert backend.sleeps is False
    backend.asked.clear()
    await vllm.reclaim()
    assert backend.asked == [("/is_sleeping", {})], "one that is awake is left alone"


@pytest.mark.parametrize("sleeps", [None, False])
async def test_one_that_cannot_says_what_to_start_it_with(
    backend: FakeBackend, vllm: VLLM, sleeps: bool | None
) -> None:
    backend.sleeps, backend.sleep_mode = sleeps, False
    with pytest.raises(Unsupported, match="--enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"):
        await vllm.free()
    assert backend.sleeps is sleeps
    await vllm.reclaim()


async def test_all_replicas_give_it_back_or_none(backend: FakeBackend, vllm: VLLM, tmp_path: Path) -> None:
    other = FakeBackend()
    await other.start()
    try:
        async with aiohttp.ClientSession() as http:
            servers = {vllm.url: vllm, other.url: VLLM(BackendSection(kind="vllm", url=other.url))}
            both = Replicas(servers.__getitem__, list(servers))
            await both.start(http, asyncio.Event().wait)  # type: ignore[arg-type]
            backend.sleeps, other.sleeps = False, False
            await both.free()
            assert backend.sleeps and other.sleeps
            await both.reclaim()
            assert not backend.sleeps and not other.sleeps
            other.sleep_mode = False
            with pytest.raises(Unsupported):
                await both.free()
            assert not backend.sleeps, "the first was woken up again"
            backend.lora, other.max_rank = True, 8
            assert other.url in str(await both.check(16, tmp_path))
            await both.stop()
    finally:
        await other.stop()
