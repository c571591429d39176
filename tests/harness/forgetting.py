"""What is forgotten, and what of it is left in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.harness.in_process import Proxy


async def forget(proxy: Proxy, status: int = 200, **body: Any) -> dict[str, Any]:
    async with proxy.http.post("/rl/forget", json=body) as response:
        assert response.status == status, await response.text()
        return dict(await response.json())


def lines(folder: Path, name: str = "samples.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]
