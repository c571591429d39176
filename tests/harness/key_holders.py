"""People with keys: what they say, what they rate, and the names that machines give them."""

from __future__ import annotations

from typing import Any

from scripts.harness.in_process import Proxy

CLAUDE_CODE = "user_" + "ab12" * 16 + "_account__session_01234567-89ab-cdef-0123-456789abcdef"
CLAUDE_CODE_JSON = '{"device_id": "d1", "account_uuid": "", "session_id": "01234567-89ab-cdef-0123-456789abcdef"}'


async def keys(proxy: Proxy, **roles: str) -> dict[str, dict[str, str]]:
    """Headers with a key each, by its name."""
    found = {}
    for name, role in roles.items():
        body = {"name": name, "role": role}
        async with proxy.http.post("/rl/keys", json=body, headers={"x-api-key": proxy.local}) as response:
            assert response.status == 201
            found[name] = {"x-api-key": (await response.json())["key"]}
    return found


async def says(proxy: Proxy, *said: str, headers: Any = None, **more: Any) -> str:
    response = await proxy.chat(*said, headers=headers, **more)
    answer = await response.json()
    assert response.status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


async def rated(proxy: Proxy) -> dict[str, list[str]]:
    """Who has rated which completion."""
    return {one.new.id: [r.rater for r in one.ratings] for one in await proxy.store.completions.page() if one.ratings}


async def nothing_was_done(proxy: Proxy, asked: int) -> None:
    counts = await proxy.store.stats.counts()
    assert (counts["good"], counts["bad"]) == (0, 0)
    assert (await proxy.store.versions.pointer()).changed_at == 0 and await proxy.store.runs.recent() == []
    assert not (await proxy.get("/rl/status"))["training"]["paused"]
    assert len(proxy.backend.requests) == asked  # each of them went to the model
