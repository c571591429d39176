"""Of a session that is off nothing is kept, also after a restart, and of one that is on again all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from proxy.training import run_folder
from scripts.harness.in_process import Proxy

SAID = {"model": "fake", "messages": [{"role": "user", "content": "keep-none-of-this"}]}


async def turn(proxy: Proxy, capture: str, session: str = "s1") -> int:
    async with proxy.http.post("/rl/capture", json={"session": session, "capture": capture}) as response:
        return response.status


async def ask(proxy: Proxy, path: str) -> str | None:
    async with proxy.http.post(path, json=SAID) as response:
        assert response.status == 200 and "keep-none-of-this" in await response.text()
        return response.headers.get("x-rl-completion-id")


async def test_a_session_is_off_until_it_is_on_again(proxy: Proxy) -> None:
    assert await turn(proxy, "off") == 200
    for _ in range(2):
        assert await ask(proxy, "/s/s1/v1/chat/completions") is None
        async with proxy.http.post("/v1/chat/completions", json=SAID, headers={"x-rl-session": "s1"}) as response:
            assert "x-rl-completion-id" not in response.headers
        assert (await proxy.get("/rl/capture")) == {"off": ["s1"]}
        assert await proxy.store.completions.page() == []
        await proxy.stop()
        assert not any(b"keep-none" in f.read_bytes() for f in proxy.home.rglob("*") if f.is_file())
        await proxy.start()
    assert await ask(proxy, "/s/s2/v1/chat/completions") is not None
    assert await turn(proxy, "on") == 200
    assert await ask(proxy, "/s/s1/v1/chat/completions") is not None
    assert [c.new.session for c in await proxy.store.completions.page()] == ["s1", "s2"]


async def test_the_header_keeps_nothing_either(proxy: Proxy) -> None:
    async with proxy.http.post("/v1/chat/completions", json=SAID, headers={"x-rl-capture": "off"}) as response:
        assert response.status == 200 and "x-rl-completion-id" not in response.headers
    assert await proxy.store.completions.page() == []


@pytest.mark.parametrize(
    "body", ["[]", "{", '{"session": "s"}', '{"session": "", "capture": "off"}', '{"capture": "on"}']
)
async def test_nonsense_is_refused(proxy: Proxy, body: str) -> None:
    async with proxy.http.post("/rl/capture", data=body) as response:
        assert response.status == 400


def test_unrated_completions_in_old_run_folders_go(tmp_path: Path) -> None:
    for name, at, ended in (("r00001", 100, True), ("r00002", 300, True), ("r00003", 100, False)):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("calibration.jsonl", "samples.jsonl", *(["result.json"] if ended else [])):
            (folder / file).write_text(json.dumps({}))
            os.utime(folder / file, (at, at))
    assert run_folder.expire(tmp_path, 200, {"r00003"}) == 1
    left = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.glob("*/calibration.jsonl"))
    assert left == ["r00002/calibration.jsonl", "r00003/calibration.jsonl"]
    assert (tmp_path / "r00001/samples.jsonl").exists()
