"""kill -9, a full disk, files that rot and loads that are refused, each in the middle of a swap, with real processes.

Each ends in the old version or in the new one: what `status` says is live, what a reply's header names, and what the
model says are one and the same.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import psutil
import pytest

from scripts.harness.serving import Serving
from tests.harness.swaps import ENOUGH_S, answers, kill_and_start, make_adapters, promote, published, says, still

pytestmark = [pytest.mark.model, pytest.mark.heavy, pytest.mark.timeout(900)]

REFUSED, CORRUPT = 3, 4


@pytest.fixture(scope="module")
def adapters(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_adapters(tiny_weights, tmp_path_factory.mktemp("adapters"))


def serving(home: Path, weights: Path) -> Serving:
    return Serving(home, weights, RLPROXY_TRAIN__ENABLED="false")


async def texts_of(served: Serving) -> dict[str, str]:
    texts = {pin: (await says(served, f"small@{pin}"))[0] for pin in ("base", "v1", "v2")}
    assert len(set(texts.values())) == 3, "versions that say the same cannot be told apart"
    return texts


def backend_of(served: Serving) -> psutil.Process:
    return next(
        p for p in psutil.Process(served.process.pid).children(recursive=True) if "trainer.serve" in p.cmdline()
    )


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
