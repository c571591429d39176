"""kill -9 in the middle of a swap with the real llama-server, run by rlproxy: `make test-backends`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.harness.serving import Serving
from tests.backends.test_llamacpp import SERVER, plain
from tests.harness import llama_faults, swaps
from tests.harness.llama_faults import a_server_dies, texts_of, the_proxy_dies
from tests.harness.swaps import published, with_manifest

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1800)]


async def test_kill_of_proxy_and_servers(
    tmp_path: Path,
    weights: Path,
    adapters: list[Path],
    base_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (swaps, llama_faults):
        monkeypatch.setattr(module, "ENOUGH_S", 400.0)  # on a busy machine, too: each version is converted first
    versions = [with_manifest(Path(shutil.copytree(one, tmp_path / one.name))) for one in adapters]
    await published(tmp_path / "home", versions)
    command = " ".join([str(SERVER), "--offline", *plain(base_gguf)])
    env = {"RLPROXY_TRAIN__ENABLED": "false", "RLPROXY_BACKEND__KIND": "llamacpp", "RLPROXY_BACKEND__COMMAND": command}
    served = Serving(tmp_path / "home", weights, **env)
    await served.start()
    try:
        texts = await texts_of(served)
        await the_proxy_dies(served, texts)
        await served.post("/rl/rollback?base")
        await a_server_dies(served, texts)
    finally:
        assert await served.stop() == 0, served.log
