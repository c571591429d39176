"""kill -9 of rlproxy, and of one of the llama-servers that it runs, in the middle of a swap.

What happens then, for whichever server it is: the fake one in the fast suite, the real one in `make test-backends`. In
the middle: the new server is there and stopped, so that it can neither answer nor be taken for well.
"""

from __future__ import annotations

import asyncio

import psutil

from scripts.harness.serving import Serving
from tests.harness.swaps import ENOUGH_S, answers, kill_and_start, promote, says, still

BASE = "base"


def servers(served: Serving) -> dict[str, psutil.Process]:
    """The processes of each version, by its name."""
    found = {}
    for child in psutil.Process(served.process.pid).children(recursive=True):
        try:
            line = child.cmdline()
        except psutil.Error:
            continue
        if line and "--port" in line and line[0] != "sh":
            versions = [part.rpartition("@")[2] for part in line if "@v" in part]
            found[versions[0] if versions else BASE] = child
    return found


async def server_of(served: Serving, version: str) -> psutil.Process:
    """As soon as there is one."""
    async with asyncio.timeout(ENOUGH_S):
        while version not in (found := servers(served)):
            await asyncio.sleep(0.005)
    return found[version]


async def only(served: Serving, *versions: str) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while set(servers(served)) != {BASE, *versions}:
            await asyncio.sleep(0.02)


async def texts_of(served: Serving) -> dict[str, str]:
    texts = {pin: (await says(served, f"small@{pin}"))[0] for pin in (BASE, "v1", "v2")}
    assert len(set(texts.values())) == 3, "versions that say the same cannot be told apart"
    await only(served)
    return texts


async def the_proxy_dies(served: Serving, texts: dict[str, str]) -> None:
    """While a server starts; then at any moment of a swap. What is live after it is whole, and so are the others."""
    swap = promote(served, 1)
    new = await server_of(served, "v1")
    new.suspend()
    assert not swap.done()
    await kill_and_start(served, swap, new)
    assert await answers(served, texts) == BASE
    assert (await promote(served, 1))[0] == 200
    for delay in (0.1, 0.8):  # its start, its warm-up, the pointer, the end of another one
        live = await answers(served, texts)
        other = 2 if live == "v1" else 1
        swap = promote(served, other)
        await asyncio.sleep(delay)
        await kill_and_start(served, swap, None)
        assert await answers(served, texts) in (live, f"v{other}")
        for pin, text in texts.items():
            assert (await says(served, f"small@{pin}")) == (text, pin)


async def a_server_dies(served: Serving, texts: dict[str, str]) -> None:
    """The new one, the live one, the model's own, with v1 live and v2 on its way; and the live one with questions."""
    assert (await promote(served, 1))[0] == 200
    swap = promote(served, 2)
    new = await server_of(served, "v2")
    new.suspend()
    new.kill()
    assert (await swap)[0] == 502
    await still(served, texts, "v1", "v2 did not go live", "did not start with small@v2")
    await only(served, "v1")

    swap = promote(served, 2)
    new = await server_of(served, "v2")
    new.suspend()
    for version in ("v1", BASE):
        servers(served)[version].kill()
    assert await answers(served, texts) == "v1", "it waits for the one that is started in its place"
    assert not swap.done()
    new.resume()
    assert (await swap)[0] == 200 and (await served.status())["problem"] is None
    assert await answers(served, texts) == "v2"
    assert (await served.post("/rl/rollback"))["live"] == 1
    assert await answers(served, texts) == "v1"

    live = servers(served)["v1"]
    live.suspend()  # it has the questions, and has not said a word
    asked = [asyncio.create_task(says(served)) for _ in range(4)]
    await asyncio.sleep(1)
    live.kill()
    assert await asyncio.gather(*asked) == [(texts["v1"], "v1")] * 4
