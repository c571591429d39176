"""A proxy that has versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish


@pytest.fixture
async def versions(proxy: Proxy) -> list[Path]:
    """Three versions, none live."""
    await proxy.post("/rl/pause")
    folders = []
    for version in (1, 2, 3):
        await proxy.chat(f"q{version}")
        await proxy.rate(completion_id="last", rating="good")
        folders.append(await publish(proxy, version))
    return folders
