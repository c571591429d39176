"""Keys from the command line: what is asked before others are locked out, agents that get one, and the way back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest

from proxy.cli import keys
from proxy.core.address_file import ADDRESS_FILE
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from store import records
from tests.harness.terminal import Terminal
from tests.proxy.cli.agents.test_command import person


@pytest.fixture
def keyed(cli: Proxy) -> Proxy:
    """Its commands have the key of this start, as `rlproxy serve` writes it."""
    note_address(cli)
    return cli


def test_roles_are_those_of_the_store() -> None:
    assert get_args(keys.Role) == get_args(records.Role)


def note_address(proxy: Proxy) -> None:
    address = {"url": proxy.url, "pid": os.getpid(), "key": proxy.local}
    (proxy.home / ADDRESS_FILE).write_text(json.dumps(address))


async def restart(proxy: Proxy, **flags: Any) -> None:
    await proxy.start(**flags)
    note_address(proxy)


async def check_line(proxy: Proxy, name: str, **env: str) -> str:
    _, out, _ = await rlproxy(proxy.home, "doctor", "--json", **env)
    return next(f"{check['state']}: {check['line']}" for check in json.loads(out) if check["name"] == name)


def token(folder: Path) -> str:
    env = json.loads((folder / "person/.claude/settings.json").read_text())["env"]
    return str(env["ANTHROPIC_AUTH_TOKEN"])


async def status_by(proxy: Proxy, key: str) -> int:
    return (await proxy.chat("hi", headers={"x-api-key": key} if key else {})).status


async def test_the_four_states_are_told(keyed: Proxy) -> None:
    _, out, _ = await rlproxy(keyed.home, "keys", "list")
    assert "No key was ever handed out." in out and "None is asked for: only this machine" in out
    assert await check_line(keyed, "keys") == f"ok: none is asked for: only this machine reaches {keyed.url}"
    code, out, err = await rlproxy(keyed.home, "keys", "create", "--name", "ann", "--role", "rate")
    assert code == 0 and await status_by(keyed, out.strip()) == 200 and await status_by(keyed, "") == 401
    assert "`rlproxy keys off` ends that" in err
    assert "One is asked for, except of commands" in (await rlproxy(keyed.home, "keys", "list"))[1]
    assert "note: 1 handed out, 0 of them admin's; nobody with a key" in await check_line(keyed, "keys")
    await rlproxy(keyed.home, "keys", "revoke", "ann")
    _, out, _ = await rlproxy(keyed.home, "keys", "list")
    assert "All are revoked, and one is asked for still" in out and "`rlproxy keys off` ends that" in out
    assert "note: all are revoked, and one is asked for still" in await check_line(keyed, "keys")
    await keyed.stop()
    await restart(keyed, server__api_key="sk-of-the-environment")
    _, out, _ = await rlproxy(keyed.home, "keys", "list")
    assert "server.api_key holds one, too" in out and "One is asked for, except" in out
    assert "server.api_key is set in the settings or the environment" in await check_line(keyed, "keys")
    code, _, err = await rlproxy(keyed.home, "keys", "off", "--yes")
    assert code == 1 and "RLPROXY_SERVER__API_KEY" in err


async def test_the_way_back_outlives_a_restart_and_an_older_database(keyed: Proxy, tmp_path: Path) -> None:
    key = (await rlproxy(keyed.home, "keys", "create", "--name", "ann", "--role", "rate"))[1].strip()
    assert (await rlproxy(keyed.home, "backup", str(tmp_path / "older.db")))[0] == 0
    code, out, _ = await rlproxy(keyed.home, "keys", "off", "--yes")
    assert code == 0 and "1 key revoked; no key is asked for" in out
    assert await status_by(keyed, "") == 200 == await status_by(keyed, key), "an agent that still shows it gets in"
    assert [line["act"] for line in await keyed.store.meta.audit_log(2)] == ["keys off", "key revoked"]
    await keyed.stop()
    await restart(keyed)
    assert await status_by(keyed, "") == 200
    await keyed.stop()
    assert (await rlproxy(keyed.home, "restore", str(tmp_path / "older.db")))[0] == 0
    await restart(keyed)
    assert await status_by(keyed, "") == 200, "ann's key stays revoked, and asks for none"
    await rlproxy(keyed.home, "keys", "create", "--name", "bob")
    assert await status_by(keyed, "") == 401
    await keyed.stop()
    await restart(keyed)
    assert await status_by(keyed, "") == 401


async def test_a_key_that_an_older_database_has_closes_the_home(keyed: Proxy, tmp_path: Path) -> None:
    assert (await rlproxy(keyed.home, "keys", "create", "--name", "ann"))[0] == 0
    assert (await rlproxy(keyed.home, "keys", "off", "--yes"))[0] == 0
    key = (await rlproxy(keyed.home, "keys", "create", "--name", "bob"))[1].strip()
    await keyed.stop()
    (keyed.home / "rlproxy.revoked").write_text("keys-needed\nkeys-open-1\n")  # as a copy of before bob's key
    await restart(keyed)
    assert await status_by(keyed, "") == 401 and await status_by(keyed, key) == 200


async def test_without_a_proxy(tmp_path: Path) -> None:
    off = {"RLPROXY_SERVER__PORT": "1"}
    assert (await rlproxy(tmp_path, "keys", "create", "--name", "ann", **off))[0] == 0
    assert json.loads((await rlproxy(tmp_path, "keys", "off", "--json", **off))[1])["needed"] is False
    assert "None is asked for" in (await rlproxy(tmp_path, "keys", "list", **off))[1]
    code, _, err = await rlproxy(tmp_path, "keys", "off", "--yes", RLPROXY_SERVER__HOST="0.0.0.0", **off)
    assert code == 1 and "so it needs keys" in err


def at(proxy: Proxy, tmp_path: Path, *words: str) -> Terminal:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | {"TERM": "dumb"}
    return Terminal(*words, "--home", str(proxy.home), env=env | person(tmp_path))


async def test_the_first_key_asks_and_offers_rate_and_the_agents(keyed: Proxy, tmp_path: Path) -> None:
    assert (await rlproxy(keyed.home, "connect", "claude-code", "--yes", **person(tmp_path)))[0] == 0
    assert token(tmp_path) == "rlproxy"
    async with at(keyed, tmp_path, "keys", "create", "--name", "me") as terminal:
        await terminal.expect("whoever asks this rlproxy needs one")
        await terminal.expect("Make it? [y/N]")
        terminal.type("\n")
        assert await terminal.ended() == 1
    assert await keyed.store.keys.all() == []
    async with at(keyed, tmp_path, "keys", "create", "--name", "me") as terminal:
        await terminal.expect("Make it? [y/N]")
        terminal.type("y\n")
        await terminal.expect("[rate]")
        terminal.type("\n")
        await terminal.expect("Put it into claude-code")
        terminal.type("\n")
        await terminal.expect("claude-code: has it")
        assert await terminal.ended() == 0
    assert token(tmp_path).startswith("rlp_") and await status_by(keyed, token(tmp_path)) == 200
    assert (await check_line(keyed, "agents", **person(tmp_path))).startswith("ok: claude-code points here")


async def test_an_agent_is_connected_with_a_key_where_one_is_asked_for(keyed: Proxy, tmp_path: Path) -> None:
    env = person(tmp_path)
    await rlproxy(keyed.home, "connect", "claude-code", "--yes", **env)
    await rlproxy(keyed.home, "keys", "create", "--name", "me", "--role", "rate", "--no-agents")
    assert "it shows no key, and rlproxy asks for one" in await check_line(keyed, "agents", **env)
    code, _, err = await rlproxy(keyed.home, "connect", "claude-code", **env)
    assert code == 1 and "`rlproxy connect claude-code --key KEY`" in err and token(tmp_path) == "rlproxy"
    code, out, err = await rlproxy(keyed.home, "connect", "claude-code", "--yes", **env)
    made = token(tmp_path)
    assert code == 0 and made not in out and "made a key for it: claude-code, role rate" in err
    assert await status_by(keyed, made) == 200
    assert (await rlproxy(keyed.home, "connect", "claude-code", "--yes", **env))[0] == 0 and token(tmp_path) == made
    await rlproxy(keyed.home, "keys", "revoke", "claude-code")
    assert "its key gets it in no more" in await check_line(keyed, "agents", **env)
    await rlproxy(keyed.home, "connect", "claude-code", "--yes", **env)
    assert token(tmp_path) != made and await status_by(keyed, token(tmp_path)) == 200
    await rlproxy(keyed.home, "keys", "off", "--yes")
    await rlproxy(keyed.home, "connect", "claude-code", "--yes", **env)
    assert token(tmp_path) == "rlproxy"


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_a_script_is_asked_nothing(keyed: Proxy, flags: tuple[Any, ...]) -> None:
    code, out, _ = await rlproxy(keyed.home, "keys", "create", "--name", "ci", *flags)
    assert code == 0 and ((json.loads(out)["role"] == "use") if flags else out.startswith("rlp_"))
