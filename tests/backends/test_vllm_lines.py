"""Three lines behind a real vLLM, in one batch; a rollback of one; a server that forgot: `make test-backends`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.lora import random_adapter
from scripts.harness.versions import QUESTION
from tests.backends.conftest import TOKENS
from tests.backends.vllm_server import VLLMServer, named
from tests.harness.home_of_lines import prepare_lines

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]

LINES = ("ann", "bob", "eve")
MODELS = ("fake", *(f"fake@{line}" for line in LINES))
AT_ONCE = 3  # requests of each line, in one batch


@pytest.fixture(scope="module")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    server = VLLMServer(weights, tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def says(proxy: Proxy, model: str) -> tuple[str, str]:
    """The version that answers, and its words."""
    response = await proxy.chat(QUESTION, model=model, temperature=0, max_tokens=TOKENS)
    body = await response.json()
    assert response.status == 200, body
    return response.headers["x-rl-adapter"], body["choices"][0]["message"]["content"]


async def test_lines_answer_in_one_batch_as_each_alone(tmp_path: Path, weights: Path, server: VLLMServer) -> None:
    home = tmp_path / "home"
    home.mkdir()
    made = {line: random_adapter(weights, tmp_path / line, seed=seed, size=0.06) for seed, line in enumerate(LINES, 1)}
    kept = {line: shutil.copytree(folder, home / "adapters_out" / line) for line, folder in made.items()}
    await prepare_lines(home, "fake", kept)
    proxy = proxy_before(home, backend__url=server.url, train__weights=str(weights))
    await proxy.start()
    try:
        alone = [await says(proxy, model) for model in MODELS]
        assert [version for version, _ in alone] == ["base", "v1", "v2", "v3"]
        assert len({text for _, text in alone}) == len(MODELS)
        together = await asyncio.gather(*(says(proxy, model) for model in MODELS * AT_ONCE))
        assert together == alone * AT_ONCE
        assert (await proxy.post("/rl/rollback?line=ann"))[0] == 200
        without_ann = [alone[0], alone[0], *alone[2:]]
        assert [await says(proxy, model) for model in MODELS] == without_ann
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert [await says(proxy, model) for model in MODELS] == without_ann, "it forgot what was loaded"
        assert server.models() >= named(home, "v2", "v3")
    finally:
        await proxy.stop()
