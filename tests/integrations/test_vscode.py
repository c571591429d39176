"""The VS Code extension in a fake of its host, before a real rlproxy."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from store.records import CompletionQuery
from tests.harness.key_holders import keys

NODE = shutil.which("node")
EXTENSION = Path(__file__).parents[2] / "integrations/vscode"
pytestmark = pytest.mark.skipif(NODE is None, reason="no node here")


class Host:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def seen(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            return dict(json.loads(await self._process.stdout.readline()))

    async def act(self, **act: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(act).encode() + b"\n")
        return await self.seen()

    async def until(self, text: str) -> dict[str, Any]:
        """Until the timer has looked, and the thumbs are about this."""
        for _ in range(60):
            if text in str((state := await self.act(wait=500))["good"]):
                return state
        raise AssertionError(f"{text!r} was not shown, but {state}")


@asynccontextmanager
async def host(url: str) -> AsyncIterator[Host]:
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(
        NODE, str(Path(__file__).with_name("vscode_host.js")), str(EXTENSION), url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Host(process)
    finally:
        process.kill()
        await process.wait()


async def ratings(proxy: Proxy) -> list[tuple[str, float, str | None]]:
    """Those that hold, oldest first."""
    rows = (await proxy.store.inbox.page(CompletionQuery())).rows
    return sorted((rating.completion_id, rating.value, rating.correction) for row in rows for rating in row.ratings)


async def test_a_thumb_rates_what_its_tooltip_shows(proxy: Proxy) -> None:
    async with host(proxy.url) as code:
        assert (await code.seen())["good"] is None, "nothing was answered yet"
        first = (await proxy.chat("one")).headers["x-rl-completion-id"]
        state = await code.until("You said: one")
        assert state["bad"].startswith("bad: “You said: one")
        assert "0 of 4" not in (state := await code.act(command="rlproxy.good"))["told"]
        assert "rated good; 1 of 4 ratings for the next run" in state["told"] and state["good"] is None
        second = (await proxy.chat("two")).headers["x-rl-completion-id"]
        await code.until("You said: two")
        await proxy.chat("three")  # it comes as the person clicks
        await code.act(command="rlproxy.bad")
        assert await ratings(proxy) == sorted([(first, 1.0, None), (second, -1.0, None)])
        await code.act(command="rlproxy.undo")
        assert await ratings(proxy) == [(first, 1.0, None)]


async def test_a_correction_from_the_selection(proxy: Proxy) -> None:
    async with host(proxy.url) as code:
        await code.seen()
        id = (await proxy.chat("one")).headers["x-rl-completion-id"]
        await code.until("You said: one")
        assert "select the better answer first" in (await code.act(command="rlproxy.fix"))["told"]
        await code.act(select="Better words.", command="rlproxy.fix")
        assert await ratings(proxy) == [(id, -1.0, "Better words.")]


async def test_a_key_and_a_proxy_that_is_gone(proxy: Proxy) -> None:
    made = await keys(proxy, ann="rate")
    key = made["ann"]["x-api-key"]
    async with host(proxy.url) as code:
        assert "needs a key" in (await code.seen())["good"]
        await proxy.chat("one", headers=made["ann"])
        state = await code.act(type=key, command="rlproxy.setKey")
        assert state["good"].startswith("good: “You said: one")
        await code.act(command="rlproxy.good")
        assert [value for _, value, _ in await ratings(proxy)] == [1.0]
    async with host("http://127.0.0.1:1") as code:
        assert "no rlproxy answers at http://127.0.0.1:1; start it" in (await code.seen())["good"]
        assert "no rlproxy answers" in (await code.act(command="rlproxy.good"))["told"]
