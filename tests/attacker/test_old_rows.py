"""Somebody with a handed-out key, and what was said before there were keys."""

from __future__ import annotations

import json

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.key_holders import keys


@pytest.mark.parametrize("role", ["use", "rate"])
async def test_rows_of_nobody_belong_to_the_admin(proxy: Proxy, role: str) -> None:
    boss = {"x-api-key": proxy.local}
    who = await keys(proxy, bob=role)
    await proxy.chat("a secret of the owner", headers=boss)
    async with proxy.http.get("/rl/export", headers=boss) as response:
        line = json.loads((await response.text()).splitlines()[0])
    lines = [json.dumps({**line, "id": id, "dialect": "responses", "user": user}) for id, user in IMPORTED.items()]
    async with proxy.http.post("/rl/import", data="\n".join(lines), headers=boss) as response:
        assert response.status == 200, await response.text()

    async def status(method: str, id: str, headers: dict[str, str]) -> int:
        async with proxy.http.request(method, f"/v1/responses/{id}", headers=headers) as response:
            return response.status

    for id in ("old-nobody", "old-ann"):
        assert await status("GET", id, who["bob"]) == await status("DELETE", id, who["bob"]) == 404
        assert await status("GET", id, boss) == 200
    assert await status("GET", "old-bob", who["bob"]) == 200


IMPORTED = {"old-nobody": None, "old-ann": "ann", "old-bob": "bob"}
