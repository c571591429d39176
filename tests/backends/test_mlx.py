"""The real mlx_lm.server, computing on the CPU, and the small real model: `make test-backends`."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from scripts.harness.in_process import Proxy
from scripts.harness.versions import QUESTION, with_real_versions
from tests.backends.test_llamacpp import TOKENS, Say, healthy, start, streamed
from trainer.formats.weights import cache_folder

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]

SERVER = cache_folder() / "venvs" / "mlx" / "bin" / "mlx_lm.server"
OPENBLAS = glob.glob("/usr/lib/*/openblas-pthread/libopenblas.so.0")  # mlx's own matrix products are slow on Linux


@contextlib.asynccontextmanager
async def running(folder: Path, weights: Path, port: int = 0) -> AsyncIterator[int]:
    """mlx_lm.server as a person would start it, with the model as `fake`; its port."""
    if not (folder / "fake").exists():
        (folder / "fake").symlink_to(weights)
    if not port:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
    about = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    about |= {"LD_PRELOAD": OPENBLAS[0]} if OPENBLAS else {}
    with (folder / "server.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            SERVER, "--model", "fake", "--host", "127.0.0.1", "--port", str(port),
            stdout=log, stderr=log, cwd=folder, env={**os.environ, **about},
        )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as http:
            while not await healthy(http, port):
                assert process.returncode is None, (folder / "server.log").read_text()[-2000:]
                await asyncio.sleep(0.1)
        yield port
    finally:
        if process.returncode is None:
            process.kill()  # it waits for its threads when told to end
        await process.wait()


def served(home: Path, weights: Path, port: int) -> Proxy:
    return start(home, weights, kind="mlx", url=f"http://127.0.0.1:{port}", model="fake")


async def away(proxy: Proxy, model: str, theirs: tuple[list[int], list[float]]) -> float:
    """The largest difference of log-probs, in nats, where the tokens are the same."""
    response = await proxy.chat(QUESTION, model=model, temperature=0.0, max_tokens=TOKENS, logprobs=True)
    body = await response.json()
    assert response.status == 200, body
    entries = body["choices"][0]["logprobs"]["content"]
    assert [entry["id"] for entry in entries] == theirs[0]
    return max(abs(entry["logprob"] - other) for entry, other in zip(entries, theirs[1], strict=True))


async def test_it_wears_the_adapter_as_peft_does_and_swaps_under_load(
    tmp_path: Path,
    weights: Path,
    adapters: list[Path],
    said_by_peft: Say,
) -> None:
    async with running(tmp_path, weights) as port:
        proxy = served(tmp_path / "home", weights, port)
        await proxy.start()
        try:
            await with_real_versions(proxy, adapters)
            for version in (1, 2):
                status, body = await proxy.post(f"/rl/promote/{version}")
                assert status == 200, body
            found = {}
            for model, adapter in (("fake@base", None), ("fake@v1", adapters[0]), ("fake@v2", adapters[1])):
                found[model] = await away(proxy, model, await asyncio.to_thread(said_by_peft, adapter))
            print("largest difference of log-probs, in nats:", found)
            assert max(found.values()) < 1e-3, found
            texts = {}
            for pin in ("base", "v1", "v2"):
                answer = await proxy.chat(QUESTION, model=f"fake@{pin}", temperature=0, max_tokens=TOKENS)
                texts[pin] = (await answer.json())["choices"][0]["message"]["content"]
            assert len(set(texts.values())) == 3
            stop = asyncio.Event()
            clients = [asyncio.create_task(streamed(proxy, texts, stop)) for _ in range(3)]
            for act in ("promote/1", "rollback", "promote/base", "promote/1"):
                assert (await proxy.post(f"/rl/{act}"))[0] == 200
                await asyncio.sleep(1)
            stop.set()
            assert sum(await asyncio.gather(*clients)) > 3
        finally:
            await proxy.stop()


async def test_a_server_or_a_proxy_that_was_restarted_answers_with_the_live_version(
    tmp_path: Path,
    weights: Path,
    adapters: list[Path],
    said_by_peft: Say,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with running(tmp_path, weights) as port:
            proxy = served(tmp_path / "home", weights, port)
            await proxy.start()
            stack.push_async_callback(lambda: proxy.stop())
            await with_real_versions(proxy, adapters[:1])
            assert (await proxy.post("/rl/promote/1"))[0] == 200
        assert (await proxy.chat(QUESTION)).status == 503
        await stack.enter_async_context(running(tmp_path, weights, port))
        theirs = await asyncio.to_thread(said_by_peft, adapters[0])
        assert await away(proxy, "fake", theirs) < 1e-3
        await proxy.stop()
        await proxy.start()
        assert await away(proxy, "fake", theirs) < 1e-3
