"""The served model against the weights: what a check says, and a server that reads otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls


async def said(proxy: Proxy, state: str) -> dict[str, Any]:
    async for _ in Polls():
        status = dict(await proxy.get("/rl/status"))
        if status["match"]["state"] == state:
            return status
    pytest.fail(f"not {state}: {status['match']}")


def reads_otherwise(proxy: Proxy) -> None:
    """The prompt that the server tells of is not the one whose tokens it counts."""
    read = {
        "prompt_ids": [1, 2],
        "rendered": "<user>x",
        "theirs": "[user]x",
        "their_tokens": 5,
        "reply_ids": [],
        "logprobs": [],
        "best": [],
    }
    proxy.launcher.weights_say = {"conversations": [read] * 3}
