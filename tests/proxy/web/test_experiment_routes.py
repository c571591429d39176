"""`POST /rl/experiments`: what it takes as the number of a version."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.in_process import Proxy


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"version": 600}, 404),  # no such version
        ({"version": 600.0, "share": 0.7}, 404),
        ({"version": 600, "against": 599.0}, 409),  # not live
        ({"version": 600.5}, 400),
        ({"version": True}, 400),
        ({"version": -1}, 400),
        ({"version": 1e300}, 400),
        ({"version": "6"}, 400),
        ({}, 400),
    ],
)
async def test_a_whole_number_is_a_version(proxy: Proxy, body: dict[str, Any], status: int) -> None:
    async with proxy.http.post("/rl/experiments", json=body) as response:
        assert response.status == status, await response.text()
