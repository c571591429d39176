"""A proxy that goes away in the middle of an answer, and output that cannot be written: said, and nothing half kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.fakes.breaking import CHUNKED, HEAD, Breaking, chunks, whole
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.terminal import CTRL_C, CTRL_D, Terminal

CUT = {
    "between two chunks": chunks(b'{"a": 1}\n', b'{"a": 2}\n'),
    "in a line": chunks(b'{"a": 1}\n', b'{"a": 2'),
    "in a chunk": chunks(b'{"a": 1}\n') + b'ff\r\n{"a": 2',
    "before the first": CHUNKED,
    "of a known length": HEAD + b'content-length: 99\r\n\r\n{"a": 1}\n',
}


def one_sentence(err: str) -> bool:
    return err.startswith("rlproxy: ") and len(err.splitlines()) == 1


@pytest.mark.parametrize("how", CUT)
async def test_an_export_that_breaks_off_is_no_export(tmp_path: Path, how: str) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("of last week")
    async with Breaking(CUT[how]) as proxy:
        port = {"RLPROXY_SERVER__PORT": proxy.port}
        code, out, err = await rlproxy(tmp_path / "home", "export", "-o", str(file), "--force", **port)
        assert code == 3 and one_sentence(err) and f"{file} was not written" in err and not out
        assert file.read_text() == "of last week" and list(tmp_path.iterdir()) == [file]
        code, out, err = await rlproxy(tmp_path / "home", "export", "--json", **port)
        assert code == 3 and one_sentence(err) and "]" not in out
        code, out, err = await rlproxy(tmp_path / "home", "export", **port)
        assert code == 3 and one_sentence(err) and all(line.endswith("}\n") for line in out.splitlines(keepends=True))


async def test_an_export_into_no_folder_or_on_a_full_disk(cli: Proxy, tmp_path: Path) -> None:
    await cli.chat("hello")
    nowhere = tmp_path / "no" / "such" / "folder"
    code, _, err = await rlproxy(cli.home, "export", "-o", str(nowhere))
    assert code == 1 and one_sentence(err) and f"{nowhere} could not be written (No such file or directory)" in err
    code, _, err = await rlproxy(cli.home, "export", "-o", "/etc/passwd/x")
    assert code == 1 and one_sentence(err) and "Not a directory" in err
    code, _, err = await rlproxy(cli.home, "export", "-o", "/dev/full")
    assert code == 1 and one_sentence(err) and "No space left on device" in err


async def test_what_is_no_file_is_written_as_it_is(cli: Proxy) -> None:
    await cli.chat("hello")
    code, out, err = await rlproxy(cli.home, "export", "-o", "/dev/stdout")
    assert code == 0 and out.startswith("{") and "1 completions written" in err


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("command", [["status"], ["good"], ["train"], ["doctor"]])
@pytest.mark.parametrize("answer", [CUT["in a line"], CUT["of a known length"], HEAD.replace(b"200 OK", b"503 Oh")])
async def test_a_proxy_that_goes_away_while_it_answers(
    tmp_path: Path, command: list[str], answer: bytes, reset: bool
) -> None:
    async with Breaking(answer, reset=reset) as proxy:
        code, out, err = await rlproxy(tmp_path, *command, RLPROXY_SERVER__PORT=proxy.port)
    assert code == 3 and "Traceback" not in err and f"127.0.0.1:{proxy.port}" in err + out


async def test_an_import_whose_answer_breaks_off(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": "rl-x"}\n')
    async with Breaking(CUT["in a chunk"]) as proxy:
        code, _, err = await rlproxy(tmp_path, "import", str(lines), RLPROXY_SERVER__PORT=proxy.port)
    assert code == 3 and one_sentence(err) and "went away in the middle of its answer" in err


async def test_watch_goes_on_when_the_proxy_goes_away_while_it_answers(cli: Proxy) -> None:
    async with cli.http.get("/rl/status") as response:
        status = await response.read()
    async with Breaking(whole(status), whole(status), CUT["in a chunk"], whole(status)) as proxy:
        env = {**os.environ, "TERM": "xterm", "RLPROXY_SERVER__PORT": proxy.port}
        home = str(cli.home.parent / "stopped")
        async with Terminal("status", "--watch", "--home", home, env=env) as terminal:
            await terminal.expect("went away in the middle")
            await terminal.expect("0 of the 4 that start a run")
            terminal.type(CTRL_C)
            assert await terminal.ended() == 0


async def test_a_chat_goes_on_when_the_proxy_goes_away_while_it_answers(cli: Proxy) -> None:
    async with cli.http.get("/rl/status") as response:
        status = await response.read()
    event = b'data: {"id": "rl-1", "choices": [{"delta": {"content": "half an ans"}}]}\n\n'
    async with Breaking(whole(status), chunks(event)) as proxy:
        env = {**os.environ, "TERM": "dumb", "RLPROXY_SERVER__PORT": proxy.port}
        async with Terminal("chat", "--home", str(cli.home.parent / "stopped"), env=env) as terminal:
            await terminal.expect("> ")
            terminal.type("hello\n")
            await terminal.expect("half an ans")
            await terminal.expect("went away in the middle")
            await terminal.expect("> ")
            terminal.type(CTRL_D)
            assert await terminal.ended() == 0
