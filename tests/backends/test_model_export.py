"""`rlproxy model export --gguf`, served by a real llama-server: it says what the adapter says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from proxy.cli.model_export.command import ExportRequest, write
from scripts.harness.versions import QUESTION
from tests.backends.conftest import TOKENS, Say
from tests.backends.test_llamacpp import plain, running
from trainer.formats import adapter
from trainer.launch import LocalLauncher

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("kind", ["lora", "model"])
async def test_a_real_llama_server_serves_it(
    tmp_path: Path, base_gguf: Path, weights: Path, adapters: list[Path], said_by_peft: Say, kind: str
) -> None:
    def save(out: Path) -> None:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (out / name).write_bytes((adapters[0] / name).read_bytes())

    adapter.write(tmp_path / "v0001", save, {"run": 1, "samples": ["rt-1"], "weights": str(weights)})
    line = [
        {"version": 1, "parent": 0, "model": "small", "path": str(tmp_path / "v0001"), "withdrawn": None, "gate": {}}
    ]
    base = base_gguf if kind == "model" else None
    # asyncio.run inside: as the command itself, outside of this loop
    await asyncio.to_thread(write, ExportRequest("gguf", line, weights, base, tmp_path / "out"), LocalLauncher())
    file = tmp_path / "out" / "small-v1.gguf"
    options = plain(file) if kind == "model" else [*plain(base_gguf), "--lora", str(file)]
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": TOKENS}
    async with running(tmp_path, *options) as port, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with http.post(url, json={**body, "logprobs": True, "top_logprobs": 1}) as response:
            entries = (await response.json())["choices"][0]["logprobs"]["content"]
    ids, logprobs = said_by_peft(adapters[0])
    assert [entry["id"] for entry in entries] == ids[: len(entries)] and len(entries) >= TOKENS - 1
    distance = max(abs(entry["logprob"] - theirs) for entry, theirs in zip(entries, logprobs, strict=False))
    print("largest difference of log-probs, in nats:", distance)
    assert distance < 1e-3
    assert "| v1 | base | 1 |" in (tmp_path / "out" / "README.md").read_text()
