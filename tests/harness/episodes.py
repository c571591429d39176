"""Episodes as a program opens and rewards them."""

from __future__ import annotations

from typing import Any

from scripts.harness.in_process import Proxy


async def ask(proxy: Proxy, session: str, *said: str, **headers: str) -> tuple[int, dict[str, Any], str]:
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]
    url = f"/s/{session}/v1/chat/completions"
    async with proxy.http.post(url, json={"model": "fake", "messages": messages}, headers=headers) as response:
        return response.status, await response.json(), response.headers.get("x-rl-adapter", "")


async def open_one(proxy: Proxy, **body: Any) -> tuple[int, dict[str, Any]]:
    async with proxy.http.post("/rl/episodes", json=body) as response:
        return response.status, await response.json()


async def reward(proxy: Proxy, id: str, **body: Any) -> tuple[int, dict[str, Any]]:
    async with proxy.http.post(f"/rl/episodes/{id}/reward", json=body) as response:
        return response.status, await response.json()
