"""A proxy that samples by itself as soon as nobody asks, and code that rewards what it samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.relay.rollouts import sampler
from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls

CODE = """
def reward(episode):
    turn = episode["turns"][-1]
    said = turn["text"]
    if "none" in turn["messages"][-1]["content"]:
        return None
    if "raise" in turn["messages"][-1]["content"]:
        raise KeyError("no such thing")
    if said.strip().endswith("0"):
        return {"reward": -1, "comment": "an even last digit is wrong"}
    return 1
"""


async def until(proxy: Proxy, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The `rollouts` of the status, once this holds of them."""
    async for _ in Polls():
        rollouts: dict[str, Any] = (await proxy.get("/rl/status"))["rollouts"]
        if holds(rollouts):
            return rollouts
    pytest.fail(f"not reached: {rollouts}")


async def until_idle(proxy: Proxy, answers: int) -> dict[str, Any]:
    """Once so many answers are there, and no prompt lacks any."""
    return await until(
        proxy, lambda rollouts: rollouts["answers"] == answers and "no captured prompt lacks" in rollouts["line"]
    )


def refuse() -> str:
    """A backend's answer to every prompt: 400."""
    raise web.HTTPBadRequest(text="the prompt is too long")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "my.py"
    file.write_text(CODE)
    return file


@pytest.fixture
async def sampling(proxy: Proxy, code: Path, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """Four answers to a prompt, whose last digits differ. Nothing trains before 64 of them."""
    for name, seconds in (("SILENCE_S", 0.0), ("LOOK_S", 0.02), ("REST_S", 0.02)):
        monkeypatch.setattr(sampler, name, seconds)
    numbers = itertools.count()
    proxy.backend.says = lambda: f"It is {next(numbers) % 2}"
    await proxy.stop()
    await proxy.start(train__reward=f"{code}:reward", train__rollouts=4)
    return proxy
