"""A model that cannot learn at its server, at every kind of server: one sentence, and no rating is spent."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from config.settings import load
from proxy.cli.doctor.checks import examine, gather
from proxy.core.address_file import ADDRESS_FILE
from proxy.core.errors import BackendDown
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.listening import Listening
from scripts.fakes.llamacpp import FakeLlama
from scripts.fakes.lmstudio import FakeLMStudio
from scripts.fakes.mlx import FakeMlx
from scripts.fakes.ollama import FakeOllama
from scripts.fakes.sglang import FakeSGLang
from scripts.harness.in_process import Proxy, proxy_before
from scripts.models import tiny
from tests.harness.llamacpp import PRESETS
from tests.harness.ollama import NEW, OLD
from tests.harness.runs import rated, until


class Refusal(NamedTuple):
    server: Callable[[Path], Listening]
    kind: str  # backend.kind
    weights: Callable[[Path], Path]
    sentence: str


def unknown(folder: Path) -> Path:
    return tiny.make_unknown(folder)


def stablelm(folder: Path) -> Path:
    return tiny.make("stablelm", folder)


def gemma4(folder: Path) -> Path:
    return tiny.make("gemma4_text", folder)


def without_attention(folder: Path) -> Path:
    """Files of a mixture of experts with state spaces only."""
    folder.mkdir()
    config = {"model_type": "granitemoehybrid", "num_local_experts": 4, "num_hidden_layers": 1, "hidden_size": 4}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.layers.0.mamba.in_proj.weight": np.zeros((8, 4), np.float32)}, folder / "model.safetensors")
    return folder


def router(folder: Path) -> FakeLlama:
    (folder / "presets.ini").write_text(PRESETS)
    return FakeLlama(folder / "presets.ini")


UNKNOWN = "This model is a mamba, and rlproxy cannot write {} for that kind (docs/reference/models.md). Serve it with"
NO_CLASS = "This model is a {}, and {} has a class for it that takes no LoRA. docs/reference/models.md says which"
MIXTURE = "This granitemoehybrid has no linear layers in a block that is called attention, and of a mixture"
REFUSALS = {
    "vllm": Refusal(lambda _: FakeBackend(), "vllm", stablelm, NO_CLASS.format("stablelm", "vLLM 0.32.0")),
    "sglang": Refusal(lambda _: FakeSGLang(), "sglang", gemma4, NO_CLASS.format("gemma4_text", "SGLang 0.5.23")),
    "mlx": Refusal(lambda _: FakeMlx(), "mlx", without_attention, MIXTURE),
    "llama-server": Refusal(lambda _: FakeLlama(), "llamacpp", unknown, UNKNOWN.format("a GGUF adapter")),
    "llama router": Refusal(router, "llamacpp", unknown, UNKNOWN.format("a GGUF adapter")),
    "ollama, LoRA files": Refusal(
        lambda folder: FakeOllama(folder / "o", OLD), "ollama", unknown, UNKNOWN.format("a GGUF adapter")
    ),
    "ollama, whole models": Refusal(
        lambda folder: FakeOllama(folder / "o", NEW), "ollama", unknown, UNKNOWN.format("a whole GGUF model")
    ),
    "lmstudio": Refusal(
        lambda folder: FakeLMStudio(folder / "studio"), "lmstudio", unknown, UNKNOWN.format("a whole GGUF model")
    ),
}


async def before(refusal: Refusal, folder: Path, **flags: Any) -> tuple[Proxy, Listening]:
    server = refusal.server(folder)
    await server.start()
    proxy = Proxy(folder / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": refusal.kind, "backend.url": server.url, "backend.model": "fake", **flags}
    proxy.flags["train.start_at"] = 2
    if isinstance(server, FakeLMStudio):
        proxy.flags["backend.models_dir"] = str(server.folder)
    if isinstance(server, FakeLlama) and server.presets is not None:
        proxy.flags["backend.presets"] = str(server.presets)
    await proxy.start()
    return proxy, server


@pytest.fixture(params=REFUSALS)
async def refused(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Proxy, str]]:
    refusal = REFUSALS[request.param]
    weights = str(refusal.weights(tmp_path / "weights"))
    proxy, server = await before(refusal, tmp_path, **{"train.weights": weights})
    yield proxy, refusal.sentence
    await proxy.stop()
    await server.stop()


@pytest.fixture(params=["mlx", "llama router", "ollama, LoRA files", "ollama, whole models", "lmstudio"])
async def converting(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxy]:
    """Before servers that get a version in a form of their own."""
    proxy, server = await before(REFUSALS[request.param], tmp_path)
    yield proxy
    await proxy.stop()
    await server.stop()


async def test_a_model_that_cannot_learn_there_spends_no_rating(refused: tuple[Proxy, str]) -> None:
    proxy, sentence = refused
    await rated(proxy, 3)
    status = await proxy.get("/rl/status")
    assert status["backend"]["obstacle"].startswith(sentence), status["backend"]["obstacle"]
    assert status["training"]["waits_for"] == status["backend"]["obstacle"] and status["backend"]["layers"] is None
    code, answer = await proxy.post("/rl/train")
    assert code == 409 and sentence in answer["error"]["message"]
    assert proxy.launcher.started == [] and status["ratings"]["fresh"] == 3 and status["last_run"] is None
    (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
    settings = load({"home": proxy.home}, environ={}).settings
    checks = {check.name: check for check in examine(await asyncio.to_thread(gather, settings))}
    assert checks["adapters"].state == "problem" and checks["adapters"].line.startswith(sentence)


async def test_the_builtin_server_does_not_start_with_such_a_model_and_spends_no_rating(tmp_path: Path) -> None:
    """It runs no states of linear attention. What was rated before, with another model, stays fresh."""
    server = FakeBackend()
    await server.start()
    proxy = Proxy(tmp_path / "home", server, FakeLauncher())
    await proxy.start()
    await rated(proxy, 3)
    await proxy.stop()
    weights = str(tiny.make("qwen3_5_text", tmp_path / "weights"))
    refused = proxy_before(proxy.home, backend__kind="builtin", backend__url=None, train__weights=weights)
    with pytest.raises(BackendDown, match="runs models with attention layers only, and this one has linear_attention"):
        await refused.start()
    await refused.store.close()
    await proxy.start()
    status = await proxy.get("/rl/status")
    assert status["ratings"]["fresh"] == 3 and status["last_run"] is None
    await proxy.stop()
    await server.stop()


async def test_a_version_that_cannot_be_converted_gives_its_ratings_back(
    converting: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.publish.RETRY_SWAP_S", (0.01,))
    converting.launcher.unconverted = "model.layers.0.mixer cannot have a LoRA there."
    await rated(converting, 2)
    status = await until(converting, ended="failed")
    assert (status["live"], status["ratings"]["fresh"]) == (0, 2)
    assert status["last_run"]["reason"].startswith("the server cannot load v1, so its ratings are fresh again: ")
    assert "cannot have a LoRA there" in status["last_run"]["reason"]
