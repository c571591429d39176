"""The built-in backend and weights on disk: the same ones, other ones, and the same with another chat template."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from config.settings import load
from proxy.backends.vllm import VLLM
from proxy.core.events import Events
from proxy.training.weights_check import WeightsCheck
from proxy.training.weights_compare import WeightsVerdict
from scripts.harness.tiny_model import make_tiny_model
from store.store import Store
from tests.harness import tiny
from trainer.launch import LocalLauncher
from trainer.probe import look

KEY = "the-key-of-this-server"
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def others(model: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that could be named by mistake."""
    folder = tmp_path_factory.mktemp("others")
    template = shutil.copytree(model, folder / "template")
    file = template / "chat_template.jinja"
    file.write_text(file.read_text().replace("<|im_start|>assistant", "<|im_start|>model"))
    words = shutil.copytree(model, folder / "words")
    tokenizer = json.loads((words / "tokenizer.json").read_text())
    tokenizer["model"]["merges"].append(["a", "s"])
    tokenizer["model"]["vocab"]["as"] = tokenizer["model"]["vocab"].pop("Ā")  # a byte that no text has
    (words / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {
        "seed": tiny.make_model(folder / "seed", seed=1),
        "larger": make_tiny_model(weights, folder / "larger"),
        "template": template,
        "words": words,
    }


@pytest.fixture
async def server(model: Path, tmp_path: Path) -> AsyncIterator[str]:
    server = await LocalLauncher().start_server(str(model), "tiny", threads=1, key=KEY, log=tmp_path / "server.log")
    yield server.url
    await server.stop()


class InThisProcess(LocalLauncher):
    """Looks at weights with the same function, and without a process of its own that loads torch for it."""

    async def probe(self, weights: str, asked: Mapping[str, Any], *, threads: int, nice: int, log: Path) -> Any:
        return await asyncio.to_thread(partial(look, Path(weights), threads=threads, **asked))


async def verdict(url: str, weights: Path, home: Path, launcher: LocalLauncher) -> WeightsVerdict:
    flags = {"home": home, "backend.kind": "vllm", "backend.url": url, "backend.api_key": KEY, "train.threads": 1}
    settings = load(flags, environ={}).settings
    store, backend = await Store.open(home), VLLM(settings.backend)
    try:
        async with aiohttp.ClientSession() as http:
            await backend.start(http, _nothing)
            match = WeightsCheck(settings, store, backend, launcher, Events())
            await match.check(str(weights))
            assert match.verdict is not None
            return match.verdict
    finally:
        await store.close()


async def _nothing() -> None: ...


async def test_the_built_in_server_and_what_trains(
    server: str, model: Path, others: dict[str, Path], tmp_path: Path
) -> None:
    same = await verdict(server, model, tmp_path / "same", LocalLauncher())
    assert same.state == "same" and same.apart is not None and same.apart < 1e-4, same
    assert "architecture, vocabulary, chat template, log-probs" in same.line
    for name, word in (
        ("seed", "nats a token off"),
        ("larger", "it knows 259 tokens, the weights 49,152"),
        ("words", "another tokeniser"),
    ):
        found = await verdict(server, others[name], tmp_path / name, InThisProcess())
        print(name, found)
        assert found.state == "other" and word in found.line, (name, found)
    found = await verdict(server, others["template"], tmp_path / "template", InThisProcess())
    assert found.state == "same" and found.apart is not None and found.apart < 1e-4, "scored after what the server read"
    assert found.rendering is not None and "<|im_start|>model" in str(found.rendering["weights"])
    assert "runs train on the prompt as the server renders it" in found.rendering["line"]
