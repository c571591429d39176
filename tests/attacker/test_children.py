"""Another user of this machine, who finds the port of a server that rlproxy has started."""

from __future__ import annotations

import sys
from pathlib import Path

import aiohttp
import psutil
import pytest

from scripts.harness.in_process import Proxy
from tests.harness import tiny
from trainer.launch import LocalLauncher

LOAD = {"lora_name": "theirs", "lora_path": "/tmp"}


@pytest.fixture
async def managed(tmp_path: Path, proxy: Proxy) -> Proxy:
    await proxy.stop()
    proxy.kind = None
    (tmp_path / "fake.gguf").touch()
    command = f"{sys.executable} -m scripts.fakes.llamacpp -m {tmp_path}/fake.gguf"
    await proxy.start(backend__kind="llamacpp", backend__url="", backend__command=command)
    return proxy


@pytest.fixture
async def builtin(tmp_path: Path, proxy: Proxy) -> Proxy:
    await proxy.stop()
    proxy.kind, proxy.launcher = None, LocalLauncher()  # type: ignore[assignment]
    model = tiny.make_model(tmp_path / "tiny")
    await proxy.start(backend__kind="builtin", backend__url="", train__weights=str(model))
    return proxy


def servers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "postgres" not in child.name()]  # the database of other tests


def urls() -> set[str]:
    """Where they listen, as anybody can see."""
    ports = {one.laddr.port for process in servers() for one in process.net_connections("tcp") if not one.raddr}
    return {f"http://127.0.0.1:{port}" for port in ports}


async def refused(asks: dict[str, object]) -> None:
    (url,) = urls()
    async with aiohttp.ClientSession(url) as http:
        for path, body in asks.items():
            for key in (None, "Bearer ", "Bearer x", "Bearer ÿ", "Basic eDp5"):
                async with http.post(path, json=body, headers={"authorization": key} if key else {}) as response:
                    assert response.status == 401, path


def not_told(proxy: Proxy) -> None:
    """The key is nowhere but in the environment of the process, which its user alone can read."""
    environments = [process.environ() for process in servers()]
    (key,) = {one[name] for one in environments for name in ("LLAMA_API_KEY", "RLPROXY_SERVE_KEY") if name in one}
    assert len(key) >= 32
    assert not [word for process in servers() for word in process.cmdline() if key in word]
    assert key.encode() not in b"".join(file.read_bytes() for file in proxy.home.rglob("*") if file.is_file())


@pytest.mark.model
@pytest.mark.timeout(600)
async def test_the_built_in_backend_answers_rlproxy_alone(builtin: Proxy) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    await refused({"/v1/chat/completions": chat, "/v1/load_lora_adapter": LOAD, "/tokenize": chat})
    async with builtin.http.post("/v1/chat/completions", json=chat) as response:
        assert response.status == 200, await response.text()
    not_told(builtin)


async def test_a_llama_server_of_ours_answers_rlproxy_alone(managed: Proxy) -> None:
    await refused({"/v1/chat/completions": {"model": "fake", "messages": []}, "/lora-adapters": []})
    assert "fake" in await managed.say("hi")
    not_told(managed)
