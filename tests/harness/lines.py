"""Requests and ratings of a line, and the wait until it has another version: over a whole proxy with a fake trainer."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls


async def call(proxy: Proxy, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with proxy.http.request(method, path, json=body, headers=headers) as response:
        raw = await response.read()
        return response.status, await response.json() if raw else None


async def create(proxy: Proxy, name: str, **body: Any) -> dict[str, Any]:
    status, line = await call(proxy, "POST", "/rl/lines", {"name": name, **body}, proxy.local)
    assert status == 201, line
    return dict(line)


async def ask(proxy: Proxy, line: str, text: str = "x", **headers: str) -> aiohttp.ClientResponse:
    model = "fake" if line == "common" else f"fake@{line}"
    response = await proxy.chat(text, model=model, headers=headers)
    await response.read()
    return response


async def rate(proxy: Proxy, line: str, count: int, rating: str = "good") -> list[str]:
    """The ids of the rated completions."""
    ids = []
    for index in range(count):
        response = await ask(proxy, line, f"{line} {rating} {index}")
        ids.append(response.headers["x-rl-completion-id"])
        status, body = await proxy.rate(completion_id=ids[-1], rating=rating)
        assert status == 201, body
    return ids


async def until_live(proxy: Proxy, line: str, version: int) -> dict[str, Any]:
    async for _ in Polls():
        status = await proxy.get(f"/rl/status?line={line}")
        if status["live"] == version and status["training"]["run"] is None:
            return dict(status)
    pytest.fail(f"not reached: {status}")


async def answers(proxy: Proxy, line: str) -> str:
    return (await ask(proxy, line)).headers["x-rl-adapter"]
