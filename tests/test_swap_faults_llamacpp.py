"""kill -9 in the middle of a swap with servers that rlproxy runs itself: real processes, of a fake llama-server.

The real one: tests/backends/test_llamacpp_faults.py.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from scripts.harness.serving import Serving
from tests.harness.llama_faults import a_server_dies, only, server_of, texts_of, the_proxy_dies
from tests.harness.swaps import answers, kill_and_start, make_adapters, promote, published

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def adapters(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_adapters(tiny_weights, tmp_path_factory.mktemp("adapters"))


def serving(folder: Path, weights: Path) -> Serving:
    command = f"{sys.executable} -m scripts.fakes.llamacpp -m {folder}/fake.gguf"
    env = {"RLPROXY_TRAIN__ENABLED": "false", "RLPROXY_BACKEND__KIND": "llamacpp", "RLPROXY_BACKEND__COMMAND": command}
    return Serving(folder / "home", weights, **env)


async def test_kill_of_the_proxy(tiny_weights: Path, tmp_path: Path, adapters: list[Path]) -> None:
    await published(tmp_path / "home", adapters[:2])
    served = serving(tmp_path, tiny_weights)
    await served.start()
    texts = await texts_of(served)
    (silent := tmp_path / "fake.gguf.silent").touch()
    swap = promote(served, 2)
    await server_of(served, "v2")
    await asyncio.sleep(1)  # it is asked whether it can answer
    silent.unlink()
    await kill_and_start(served, swap, None)
    assert await answers(served, texts) in ("base", "v2")
    await served.post("/rl/rollback?base")
    await the_proxy_dies(served, texts)
    assert await served.stop() == 0, served.log


async def test_kill_of_a_server(tiny_weights: Path, tmp_path: Path, adapters: list[Path]) -> None:
    await published(tmp_path / "home", adapters[:2])
    served = serving(tmp_path, tiny_weights)
    await served.start()
    try:
        texts = await texts_of(served)
        (silent := tmp_path / "fake.gguf.silent").touch()
        swap = promote(served, 2)
        new = await server_of(served, "v2")
        await asyncio.sleep(1)
        silent.unlink()
        new.kill()
        if (await swap)[0] != 200:  # else it was so slow that it was killed after it had gone live
            assert "v2 did not go live" in (await served.status())["problem"]
            assert await answers(served, texts) == "base"
        await served.post("/rl/rollback?base")
        await only(served)
        await a_server_dies(served, texts)
    finally:
        assert await served.stop() == 0, served.log
