"""The audit log that can be read: a line for every act of an admin, by the key that acted."""

from __future__ import annotations

import json
from typing import Any

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.key_holders import keys
from tests.harness.runs import rated, until


async def audit(proxy: Proxy, query: str = "", **headers: str) -> list[dict[str, Any]]:
    async with proxy.http.get(f"/rl/audit{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        return list((await response.json())["data"])


async def act(proxy: Proxy, path: str, key: str, body: Any = None, method: str = "POST") -> int:
    async with proxy.http.request(method, path, json=body, headers={"x-api-key": key}) as response:
        await response.read()
        return response.status


async def test_every_act_has_a_line_by_the_key_that_acted(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await rated(proxy, 1)
    id = (await proxy.chat("unrated")).headers["x-rl-completion-id"]
    made = await keys(proxy, boss="admin", ann="rate")
    boss = made["boss"]["x-api-key"]
    acts = [
        ("/rl/pause", None), ("/rl/resume", None), ("/rl/rollback?base", None), ("/rl/promote/1", None),
        ("/rl/capture", {"session": "s", "capture": "off"}), ("/rl/forget", {"completion": id}),
        ("/rl/train", None), ("/rl/reset", None),
    ]  # fmt: skip
    proxy.launcher.hold = True
    for path, body in acts:
        status = await act(proxy, path, boss, body)
        assert status < 300, (path, status)
    await act(proxy, "/rl/export", boss, method="GET")
    await act(proxy, "/rl/cancel", boss)
    lines = await audit(proxy, **{"x-api-key": boss})
    by_boss = [line["act"] for line in reversed(lines) if line["actor"] == "boss"]
    wanted = ["pause", "resume", "point", "point", "capture", "forget", "train"]
    assert [name for name in by_boss if name in wanted][:7] == wanted
    assert {"reset", "export", "cancel"} <= set(by_boss), by_boss
    assert {line["actor"] for line in lines if line["act"] == "key created"} == {"command line"}
    async with proxy.http.get("/rl/audit", headers=made["ann"]) as response:
        assert response.status == 403
    older = await audit(proxy, f"?limit=2&before={lines[1]['seq']}", **{"x-api-key": boss})
    assert older == lines[2:4]


async def test_who_acts_without_a_key_of_their_own(proxy: Proxy) -> None:
    await proxy.post("/rl/pause")
    await proxy.chat("/rl resume")
    await proxy.chat("/rl pause", headers={"x-rl-user": "ann"})
    assert [(line["actor"], line["act"]) for line in await audit(proxy)] == [
        ("owner (chat)", "resume"),
        ("owner", "pause"),
    ]
    await proxy.stop()
    await proxy.start(server__admin_key="sk-boss", server__api_key="sk-use")
    assert await act(proxy, "/rl/resume", "sk-boss") == 200 and await act(proxy, "/rl/pause", proxy.local) == 200
    lines = await audit(proxy, "?limit=2", **{"x-api-key": "sk-boss"})
    assert [line["actor"] for line in lines] == ["command line", "server.admin_key"]


async def test_a_refused_act_has_no_line(proxy: Proxy) -> None:
    assert (await proxy.post("/rl/train"))[0] == 409 and (await proxy.post("/rl/cancel"))[0] == 409
    assert await audit(proxy) == []


async def test_the_command(cli: Proxy) -> None:
    assert "Nobody has changed anything" in (await rlproxy(cli.home, "audit", "list"))[1]
    await rlproxy(cli.home, "pause")
    code, out, _ = await rlproxy(cli.home, "audit", "list")
    assert code == 0 and "owner" in out and "pause" in out
    code, out, _ = await rlproxy(cli.home, "audit", "list", "--json")
    assert [(line["actor"], line["act"]) for line in json.loads(out)] == [("owner", "pause")]
