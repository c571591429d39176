"""kill -9, a full disk, files that rot and loads that are refused, each in the middle of a swap, with real processes.

Each ends in the old version or in the new one: what `status` says is live, what a reply's header names, and what the
model says are one and the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.harness.serving import Serving
from tests.harness.swap_versions import make_adapters, published

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

REFUSED, CORRUPT = 3, 4
ENOUGH_S = 60.0


@pytest.fixture(scope="module")
def adapters(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_adapters(tiny_weights, tmp_path_factory.mktemp("adapters"))


def serving(home: Path, weights: Path) -> Serving:
    return Serving(home, weights, RLPROXY_TRAIN__ENABLED="false")


async def says(served: Serving, model: str = "small") -> tuple[str, str]:
    """What it says, and which version it says it is."""
    async with asyncio.timeout(ENOUGH_S):
        answer, label = await served.chat("Say something", model=model, temperature=0, max_tokens=12)
    return answer["choices"][0]["message"]["content"], label


async def texts_of(served: Serving) -> dict[str, str]:
    texts = {pin: (await says(served, f"small@{pin}"))[0] for pin in ("base", "v1", "v2")}
    assert len(set(texts.values())) == 3, "versions that say the same cannot be told apart"
    return texts


async def answers(served: Serving, texts: dict[str, str]) -> str:
    """The version that answers, by all that tells it."""
    text, label = await says(served)
    live = (await served.status())["live"]
    assert label == (f"v{live}" if live else "base") and text == texts[label], (label, live, text, texts)
    return label


def backend_of(served: Serving) -> psutil.Process:
    return next(
        p for p in psutil.Process(served.process.pid).children(recursive=True) if "trainer.serve" in p.cmdline()
    )


def promote(served: Serving, version: int) -> asyncio.Task[tuple[int, Any]]:
    async def ask() -> tuple[int, Any]:
        async with served.http.post(f"/rl/promote/{version}") as response:
            return response.status, await response.json()

    return asyncio.create_task(ask())


async def kill_and_start(served: Serving, swap: asyncio.Task[tuple[int, Any]], stopped: psutil.Process | None) -> None:
    killing = asyncio.create_task(served.kill())
    if stopped is not None:
        await asyncio.sleep(0.5)
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have been ended already
            stopped.resume()  # only a process that runs can see that its parent has gone
    await killing
    await asyncio.wait({swap})
    swap.exception()
    await served.start()


async def test_kill_of_the_proxy(tiny_weights: Path, tmp_path: Path, adapters: list[Path]) -> None:
    home = tmp_path / "home"
    await published(home, adapters[:2])
    served = serving(home, tiny_weights)
    await served.start()
    texts = await texts_of(served)

    backend = backend_of(served)
    backend.suspend()  # it has not loaded anything yet when the proxy dies
    swap = promote(served, 1)
    await asyncio.sleep(1)
    assert not swap.done()
    await kill_and_start(served, swap, backend)
    assert await answers(served, texts) == "base"

    assert (await promote(served, 1))[0] == 200
    for delay in (0.02, 0.15):  # somewhere between the load, the warm-up, the pointer and the unload
        live = await answers(served, texts)
        other = 2 if live == "v1" else 1
        swap = promote(served, other)
        await asyncio.sleep(delay)
        await kill_and_start(served, swap, None)
        assert await answers(served, texts) in (live, f"v{other}")
        for pin, text in texts.items():
            assert (await says(served, f"small@{pin}")) == (text, pin)
    assert await served.stop() == 0, served.log


async def test_faults_of_backend_disk_and_files(tiny_weights: Path, tmp_path: Path, adapters: list[Path]) -> None:
    home = tmp_path / "home"
    await published(home, adapters)
    served = serving(home, tiny_weights)
    await served.start()
    try:
        texts = await texts_of(served)
        assert (await promote(served, 1))[0] == 200
        await killed_backend(served, texts)
        await full_disk(served, texts)
        await bad_files(served, texts)
    finally:
        assert await served.stop() == 0, served.log


async def still(served: Serving, texts: dict[str, str], version: str, *words: str) -> None:
    """That version answers, and `status` says why no other one does."""
    problem = (await served.status())["problem"]
    assert problem is not None and all(word in problem for word in (*words, f"{version} still answers")), problem
    assert await answers(served, texts) == version


async def noticed(served: Serving) -> None:
    """That the backend's process has ended: a request of the moment before is lost with it."""
    async with asyncio.timeout(ENOUGH_S):
        while "down" not in (await served.status())["backend"]["state"]:
            await asyncio.sleep(0.02)


async def killed_backend(served: Serving, texts: dict[str, str]) -> None:
    """In the middle of a load: v1 comes back with the process, and then v2 goes live as if nothing had been."""
    backend = backend_of(served)
    backend.suspend()
    swap = promote(served, 2)
    await asyncio.sleep(1)
    assert not swap.done()
    backend.kill()
    status, _ = await swap
    assert status in (502, 503)
    await noticed(served)
    await still(served, texts, "v1", "v2 did not go live", "backend")
    assert backend_of(served).pid != backend.pid
    assert (await promote(served, 2))[0] == 200
    assert await answers(served, texts) == "v2" and (await served.status())["problem"] is None
    backend_of(served).kill()  # and with both loaded: both are back before anybody is let in
    await noticed(served)
    assert await answers(served, texts) == "v2"
    assert (await served.post("/rl/rollback"))["live"] == 1
    assert await answers(served, texts) == "v1"


async def full_disk(served: Serving, texts: dict[str, str]) -> None:
    """No file of the proxy can grow: nothing is captured, the pointer cannot be written, and v1 goes on answering."""
    limits = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    status, body = await promote(served, 2)
    assert status == 507, body
    await still(served, texts, "v1", "v2 did not go live")
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, limits)
    assert (await promote(served, 2))[0] == 200
    assert await answers(served, texts) == "v2"
    assert (await served.post("/rl/rollback"))["live"] == 1


async def bad_files(served: Serving, texts: dict[str, str]) -> None:
    """One that only the server finds to be none, and one that its hashes give away."""
    assert (await promote(served, REFUSED))[0] == 502
    await still(served, texts, "v1", "v3 did not go live", "refused the adapter")
    assert (await promote(served, CORRUPT))[0] == 409
    await still(served, texts, "v1", "v4 did not go live", "corrupt")
    assert await says(served, "small@v2") == (texts["v2"], "v2")
