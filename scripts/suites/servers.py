"""The servers that the suites run at, each directly and behind an rlproxy of its own.

Owns how they are started and stopped: the built-in server with the small real model, and a real llama-server.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from scripts.bench.relay.targets import free_port
from scripts.harness.serving import Serving
from scripts.suites.install import CACHE
from trainer.formats.weights import resolve

LLAMA_SERVER: Final = CACHE / "venvs/llamacpp/bin/llama-server-vulkan"
QWEN: Final = CACHE / "models/Qwen2.5-Coder-0.5B-Instruct"
GGUF: Final = CACHE / "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
ALIAS: Final = "small"  # what a Serving calls its model
NOWHERE: Final = asyncio.subprocess.DEVNULL
START_S: Final = 300.0
WINDOW: Final = "8192"  # tokens
THREADS: Final = "2"  # nothing trains beside it, and the compliance suite asks all at once and waits 30 s


@dataclass(frozen=True)
class Served:
    """One server by its two addresses."""

    direct: str
    through: str
    model: str


@asynccontextmanager
async def builtin(weights: str | None = None) -> AsyncIterator[Served]:
    """A model in rlproxy's own server. One server is asked directly; another, whose key nobody has, is behind rlproxy.

    `weights` are as in `model.weights`; None is SmolLM2.
    """
    model, port = resolve(weights).path, free_port()
    command = [sys.executable, "-m", "trainer.serve", "--weights", str(model), "--name", ALIAS, "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(*command, "--threads", THREADS, stdout=NOWHERE, stderr=NOWHERE)
        serving = Serving(Path(folder) / "home", model, RLPROXY_BACKEND__THREADS=THREADS)
        try:
            await serving.start()
            await until_ready(f"{serving.url}/readyz")
            await until_ready(f"http://127.0.0.1:{port}/v1/models")
            yield Served(f"http://127.0.0.1:{port}", serving.url, ALIAS)
            await serving.stop()
        finally:
            process.terminate()
            await process.wait()


@asynccontextmanager
async def llamacpp() -> AsyncIterator[Served]:
    """Raises FileNotFoundError where the server or the model of `make test-backends` is not there."""
    for path in (LLAMA_SERVER, GGUF):
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is not here; `make test-backends` and docs/lab/models.md say how it comes."
            )
    port = free_port()
    command = [str(LLAMA_SERVER), "-m", str(GGUF), "--port", str(port), "--jinja", "-c", WINDOW, "--alias", ALIAS]
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(*command, stdout=NOWHERE, stderr=NOWHERE)
        url = f"http://127.0.0.1:{port}"
        flags = ("--backend", "llamacpp", "--backend-url", url)
        serving = Serving(Path(folder) / "home", Path("/nowhere"), *flags)
        try:
            await until_ready(f"{url}/health")
            await serving.start()
            yield Served(url, serving.url, ALIAS)
            await serving.stop()
        finally:
            process.terminate()
            await process.wait()


async def until_ready(url: str) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


SERVERS: Final[dict[str, Callable[[], AbstractAsyncContextManager[Served]]]] = {
    "built-in": builtin,
    "llama-server": llamacpp,
    "built-in-qwen": partial(builtin, str(QWEN)),  # not by default: an hour and a half
}
BY_DEFAULT: Final = ("built-in", "llama-server")
