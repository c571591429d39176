"""Ratings until a run starts, and the wait until it has ended: over a whole proxy with a fake trainer."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls


async def rated(proxy: Proxy, count: int, rating: str = "good") -> None:
    for i in range(count):
        response = await proxy.chat(f"{rating} {i}")
        await response.read()
        await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating=rating, comment="why")


async def until(proxy: Proxy, live: int | None = None, ended: str | None = None, runs: int = 1) -> dict[str, Any]:
    """Wait for a version to be live, or for the newest run to end so."""
    async for _ in Polls():
        status = await proxy.get("/rl/status")
        last = status["last_run"]
        if live is not None and status["live"] == live and status["training"]["run"] is None:
            return dict(status)
        if ended and last and last["id"] >= runs and last["status"] == ended and status["training"]["run"] is None:
            return dict(status)
    pytest.fail(f"not reached: {status}")
