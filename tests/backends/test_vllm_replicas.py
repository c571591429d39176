"""Two real vLLM with the same model behind one proxy: `make test-backends`.

On a CPU they take 4.3 GB each, and half a minute to start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from scripts.harness.in_process import Proxy, proxy_before
from scripts.harness.versions import QUESTION, with_real_versions
from tests.backends.conftest import TOKENS
from tests.backends.vllm_server import VLLMServer, named

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1800)]

NEEDED_GB = 11  # both, and what the test itself takes


@pytest.fixture(scope="module")
def two(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VLLMServer]]:
    free = psutil.virtual_memory().available / 2**30
    if free < NEEDED_GB:
        pytest.skip(f"two of them take {NEEDED_GB} GB, and {free:.1f} are free")
    folder = tmp_path_factory.mktemp("vllm")
    servers = [VLLMServer(weights, folder / f"server{n}.log") for n in (1, 2)]
    try:
        with ThreadPoolExecutor() as both:
            list(both.map(VLLMServer.start, servers))
        yield servers
    finally:
        for server in servers:
            server.kill()


async def says(proxy: Proxy) -> tuple[int, str, str]:
    response = await proxy.chat(QUESTION, temperature=0, max_tokens=TOKENS)
    body = await response.json()
    assert response.status == 200, body
    return response.status, response.headers["x-rl-adapter"], body["choices"][0]["message"]["content"]


async def until_said(proxy: Proxy, words: str) -> None:
    async with asyncio.timeout(300):
        while words not in str((await proxy.get("/rl/status"))["backend"]["state"]):
            await asyncio.sleep(0.5)


async def test_a_version_is_in_both_and_one_that_dies_fails_nobody(
    tmp_path: Path, weights: Path, adapters: list[Path], two: list[VLLMServer]
) -> None:
    proxy = proxy_before(
        tmp_path / "home", backend__url=two[0].url, backend__replicas=[two[1].url], train__weights=str(weights)
    )
    await proxy.start()
    try:
        await with_real_versions(proxy, adapters)
        assert (await proxy.post("/rl/promote/1"))[0] == 200
        assert [server.models() for server in two] == [named(proxy.home, "v1")] * 2
        alone = await says(proxy)
        assert alone[1] == "v1" and {await says(proxy) for _ in range(2)} == {alone}  # by turns, of both
        asked = [asyncio.create_task(says(proxy)) for _ in range(4)]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(two[1].kill)
        assert set(await asyncio.gather(*asked)) == {alone}
        await until_said(proxy, "1 of 2")
        await asyncio.to_thread(two[1].start)
        await until_said(proxy, "2 of 2")
        assert two[1].models() == named(proxy.home, "v1"), "it is given back what it had, unasked"
        assert (await proxy.post("/rl/promote/2"))[0] == 200
        assert [server.models() for server in two] == [named(proxy.home, "v1", "v2")] * 2
    finally:
        await proxy.stop()
