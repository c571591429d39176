"""A command acts on the home that it is for, and on no other one whose proxy has its port."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from config.settings import load
from proxy.cli.http import HomeClient
from proxy.cli.init.smoke_test import running
from proxy.client import Unreachable
from proxy.core.address_file import ADDRESS_FILE, address, home_header, local_key, owner
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store.file.lock import Lock


def port_of(proxy: Proxy) -> dict[str, str]:
    return {"RLPROXY_SERVER__PORT": proxy.url.rpartition(":")[2]}


@pytest.mark.parametrize(
    "command",
    [
        ["forget", "session", "s", "--yes"],
        ["good"],
        ["train"],
        ["reset"],
        ["promote", "base"],
        ["cancel"],
        ["export"],
        ["status"],
    ],
)
async def test_a_command_for_a_stopped_home_is_refused_by_the_proxy_of_another(
    proxy: Proxy, tmp_path: Path, command: list[str]
) -> None:
    await proxy.chat("kept", headers={"x-rl-session": "s"})
    code, _, err = await rlproxy(tmp_path / "stopped", *command, **port_of(proxy))
    assert code == 3 and str(proxy.home) in err and str(tmp_path / "stopped") in err and "nothing was done" in err
    counts = (await proxy.get("/rl/status"))["counts"]
    assert counts["done"] == 1 and counts["good"] == 0


async def test_an_import_goes_to_no_other_home(proxy: Proxy, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": "rl-x"}\n')
    code, _, err = await rlproxy(tmp_path / "stopped", "import", str(lines), **port_of(proxy))
    assert code == 3 and "nothing was done" in err


async def test_keys_of_a_stopped_home_are_made_in_it(proxy: Proxy, tmp_path: Path) -> None:
    code, out, _ = await rlproxy(tmp_path / "stopped", "keys", "create", "--name", "ann", **port_of(proxy))
    assert code == 0 and out.startswith("rlp_") and not await proxy.store.keys.all()
    assert (tmp_path / "stopped" / "rlproxy.db").exists()


async def test_a_home_by_another_path_is_the_same(proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(proxy.home)
    assert (await rlproxy(tmp_path / "linked", "status", **port_of(proxy)))[0] == 0


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/rl/status", "/v1/models"])
async def test_who_names_no_home_is_let_in(proxy: Proxy, path: str) -> None:
    named = {"x-rl-home": quote(str(proxy.home.parent))}
    async with proxy.http.get(path) as response:
        assert response.status == 200
    async with proxy.http.get(path, headers=named) as response:
        assert response.status == 421 and (await response.json())["error"]["code"] == "another_home"
    async with proxy.http.get(path, headers={"x-rl-home": quote(str(proxy.home))}) as response:
        assert response.status == 200


async def test_where_keys_are_needed_nobody_learns_the_folder_without_one(proxy: Proxy, tmp_path: Path) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="use-key", server__admin_key="admin-key")
    async with proxy.http.get("/rl/status", headers={"x-rl-home": "/elsewhere%00"}) as response:
        assert response.status == 421 and str(proxy.home) not in await response.text()
    code, _, err = await rlproxy(tmp_path / "stopped", "good", **port_of(proxy))
    assert code == 3 and "another home" in err


async def test_the_header_stays_on_this_machine(proxy: Proxy, tmp_path: Path) -> None:
    settings = load({"home": tmp_path / "päth ☃"}, environ={}).settings
    for here in ("127.0.0.1", "[::1]", "localhost", "0.0.0.0"):
        assert home_header(settings, f"http://{here}:8484")["x-rl-home"].isascii()
    assert home_header(settings, "http://192.168.1.2:8484") == home_header(settings, "http://box.lan:8484") == {}
    await proxy.chat("hello", headers={"x-rl-home": quote(str(proxy.home))})
    assert "x-rl-home" not in proxy.backend.headers[-1]


async def test_what_a_killed_proxy_left_is_not_gone_by(proxy: Proxy, tmp_path: Path) -> None:
    home = tmp_path / "killed"
    home.mkdir()
    (home / ADDRESS_FILE).write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid(), "key": "k"}))
    port = int(proxy.url.rpartition(":")[2])
    settings = load({"home": home, "server.port": port}, environ={}).settings
    lock = Lock(home)
    assert (address(settings), local_key(settings), owner(settings)) == ("http://127.0.0.1:1", "k", os.getpid())
    lock.release()  # as the kernel does for a process that was killed
    assert (address(settings), local_key(settings), owner(settings)) == (proxy.url, None, None)


async def test_init_takes_no_other_homes_proxy_for_its_own(cli: Proxy, tmp_path: Path) -> None:
    port = int(cli.url.rpartition(":")[2])
    stopped = load({"home": tmp_path / "stopped", "server.port": port}, environ={}).settings
    assert await asyncio.to_thread(running, stopped) is None
    with pytest.raises(Unreachable, match="serves another home"):
        await asyncio.to_thread(HomeClient(stopped).ask, "GET", "/readyz")
    assert await asyncio.to_thread(running, load({"home": cli.home}, environ={}).settings) == os.getpid()
