"""Served homes that are killed: settings that let every run pass, and waits."""

from __future__ import annotations

import asyncio
from typing import Any

from scripts.harness.serving import Serving

LENIENT = {  # the gate's opinion of random weights is not the point
    "RLPROXY_GATE__BASE_NLL_RISE": "100", "RLPROXY_GATE__TEXT_NLL_RISE": "100", "RLPROXY_GATE__MARGIN_SLACK": "100",
    "RLPROXY_GATE__MIN_LENGTH_RATIO": "0", "RLPROXY_GATE__MAX_LOOPING": "8", "RLPROXY_GATE__MAX_CHANCE": "1",
    "RLPROXY_TRAIN__STAND_STILL_S": "0",  # nor is it how a run gives way to answers
}  # fmt: skip


async def until_quiet(serving: Serving) -> None:
    async with asyncio.timeout(240):
        while True:
            training = (await serving.status())["training"]
            if training["run"] is None and training["waits_for"]:
                return
            await asyncio.sleep(0.2)


async def until_step(serving: Serving, least: int) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while (status := await serving.status())["training"]["progress"].get("step", {}).get("step", 0) < least:
            await asyncio.sleep(0.05)
    return dict(status)
