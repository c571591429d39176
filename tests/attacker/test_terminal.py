"""A model, a client or a backend that wants a person's terminal: their cursor, their window's name, their clipboard."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.terminal import escape_controls, in_json
from proxy.server import configure_logs
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.records import put
from tests.harness.terminal import CTRL_D, Terminal

ROOT = Path(__file__).resolve().parents[2]
TITLE, CLIPBOARD, CLEAR = "\x1b]0;pwned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1b[2J\x1b[H"
C1, BIDI = "\x9b2J\x9d0;pwned\x9c", "\u202egnp.exe\u2066"
EVIL = f"{TITLE}{CLIPBOARD}{CLEAR}{C1}{BIDI}\x7f\b\r"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OURS = re.compile("\x1b\\[[0-9;?]*[a-zA-Z]|\r")  # colours and cursor of the command itself; the pty's own returns


@given(st.text() | st.text(alphabet=sorted({*EVIL, "a", "\n", "\t", "\ud800"})))
def test_no_control_character_is_left_and_nothing_else_is_changed(text: str) -> None:
    shown = escape_controls(text)
    assert not ACTING.search(shown)
    shown.encode()
    for piece in re.split("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text):
        assert piece in shown
    assert "".join(map(escape_controls, text)) == shown  # in whatever pieces it comes


@given(st.recursive(st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_json_says_what_it_said(value: object) -> None:
    text = in_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value and not ACTING.search(text)


async def test_a_chat_shows_what_a_model_says_and_does_not_obey_it(cli: Proxy) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")} | {"TERM": "dumb"}
    async with Terminal("chat", "--home", str(cli.home), env=env) as terminal:
        await terminal.expect("> ")
        cli.backend.says = f"fine {EVIL} \x1b ]0;cut\x07 bye"
        terminal.type("hello\n")
        await terminal.expect("bye")
        await terminal.expect("or write on")
        await terminal.expect("> ")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    assert "\\x1b]0;pwned\\x07" in terminal.shown and "\\u202e" in terminal.shown
    assert not ACTING.search(OURS.sub("", terminal.shown).replace("\x1b[2m", "")), repr(terminal.shown)
    assert "\x1b[2J" not in terminal.shown and "\x1b]" not in terminal.shown


async def test_no_command_passes_on_what_somebody_stored(cli: Proxy) -> None:
    await put(cli.store, "c0", "c1", session=EVIL, user=EVIL)
    await cli.rate(completion_id="c0", rating="bad", rater=f"eve{EVIL}", comment=EVIL)
    for command in (
        ["status"], ["runs"], ["adapters"], ["doctor"], ["good", "--id", "c1"], ["good", "--id", EVIL], ["undo", EVIL],
        ["capture", "off", f"s{CLEAR}"], ["capture", "off", "s", "--json"], ["keys", "list"], ["config", "show"],
        ["forget", "user", EVIL, "--yes"], ["export"], ["status", "--json"], ["promote", f"v{CLEAR}"],
        ["good", "--id", "c1", "--json", "--", EVIL.replace("\x00", "")], ["audit", "verify"],
    ):  # fmt: skip
        _, out, err = await rlproxy(cli.home, *command)
        assert not ACTING.search(out + err), (command, out, err)


async def test_an_export_to_a_terminal_is_the_export(cli: Proxy) -> None:
    await put(cli.store, "c0", session=f"s{C1}{BIDI}\x7f", user="ann")
    _, out, _ = await rlproxy(cli.home, "export")
    (line,) = (json.loads(one) for one in out.splitlines())
    assert line["session"] == f"s{C1}{BIDI}\x7f" and not ACTING.search(out)


async def test_another_program_at_the_proxys_address_does_not_either(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        error = {"type": "x", "param": None, "code": "x", "message": f"no {EVIL}"}
        return web.json_response({"error": error}, status=400)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = str(runner.addresses[0][1])
        for command in ("status", "good", "train", "runs"):
            code, out, err = await rlproxy(tmp_path, command, RLPROXY_SERVER__PORT=port)
            assert code == 1 and "\\x1b" in err and not ACTING.search(out + err), (command, err)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_of_the_log_is_one_line_and_only_text(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """The path of a request and the words of a backend are in it."""
    configure_logs("info", as_json)
    try:
        raise ValueError(f"no {EVIL}")
    except ValueError:
        structlog.get_logger().exception(f"it broke {EVIL}", path=f"/v1/x\nforged line {EVIL}", why=[EVIL])
    finally:
        structlog.reset_defaults()
    told = capsys.readouterr().err
    assert "forged" in told and not ACTING.search(told) and not re.search("^forged", told, re.MULTILINE)


@pytest.mark.parametrize("path", sorted((ROOT / "proxy" / "cli").rglob("*.py")), ids=lambda path: path.name)
def test_no_command_writes_past_the_guard(path: Path) -> None:
    """The stream below is for colours of ours: what is put between them has gone through `plain`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("__stdout__", "__stderr__", "buffer"):
            pytest.fail(f"{path.name}:{node.lineno} goes past the guard")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console":
            assert path.parent.name == "init", f"{path.name}:{node.lineno} should use tables.console"  # one of our own
