"""The first ten minutes in a real terminal (tmux): init before an Ollama, a chat with a rating, the running status."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.fakes.ollama import FakeOllama
from tests.harness.newcomer import Newcomer
from tests.harness.tmux import MISSING, Tmux, installed

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)


@pytest.fixture
async def person(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Newcomer]:
    newcomer = Newcomer(tmp_path / "machine", ollama.url)
    program = newcomer.bin / "rlproxy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m proxy.cli "$@"\n')
    program.chmod(0o755)
    del newcomer.env["COLUMNS"]  # the terminal says how wide it is
    yield newcomer
    await newcomer.stop_proxy()


async def test_init_then_a_chat_then_the_status(person: Newcomer, ollama: FakeOllama) -> None:
    async with Tmux(person.env) as terminal:
        await terminal.line("rlproxy init")
        shown = await terminal.expect("1  Which model shall learn?", "[1]")
        assert f"Server    ollama 0.34.4 at {ollama.url}: fake" in shown
        assert f"  1  fake  (ollama 0.34.4 at {ollama.url})" in shown
        await terminal.keys("Enter")
        await terminal.expect("2  Which weights train for fake?", "[1]")
        await terminal.line("-")
        await terminal.expect("3  How far may one training run move the model?", "[2]")
        await terminal.keys("Enter")
        await terminal.expect("4  May your comment", "[Y/n]")
        await terminal.keys("Enter")
        await terminal.expect('+kind = "ollama"', "Write this? [Y/n]")
        await terminal.keys("Enter")
        shown = await terminal.prompt()
        assert "rated good, and the status shows it:" in shown and "That rating is taken back" in shown
        assert f"Point your agent's base URL here: http://127.0.0.1:{person.port}/v1" in shown
        assert "rlproxy runs in the background as process" in shown and "Traceback" not in shown

        await terminal.clear()
        await terminal.line("rlproxy chat")
        await terminal.expect("fake, live. /help lists the keys", "\n>")
        await terminal.line("Are you there?")
        shown = await terminal.expect("g good, b bad, or write on")
        assert "fake:latest fake:latest fake:latest fake:latest" in shown
        await terminal.line("g")
        await terminal.expect("rated good: “fake:latest")
        await terminal.keys("C-d")
        await terminal.prompt()

        await terminal.clear()
        await terminal.line("rlproxy status --watch")
        shown = await terminal.expect("1 good, 0 bad", "Ctrl-C ends it")
        assert "fake, the base model answers" in shown and "2 whole answers, 2 today; rated 1 good, 0 bad" in shown
        assert "rlproxy status --watch" not in shown, "it has the other screen"
        code, _, err = await person.run("bad", "too", "long")
        assert code == 0, err
        await terminal.expect(": 0 good, 1 bad", "rated 0 good, 1 bad")
        await terminal.keys("C-c")
        shown = await terminal.prompt()
        assert "rlproxy status --watch" in shown and "whole answers" not in shown, "the screen as it was before"


@pytest.mark.parametrize("answered", [0, 1, 2, 3, 4])
async def test_ctrl_c_at_each_question_gives_the_shell_back(person: Newcomer, answered: int) -> None:
    questions = ["1  Which model", "2  Which weights", "3  How far", "4  May your comment", "Write this?"]
    async with Tmux(person.env) as terminal:
        await terminal.line("rlproxy init")
        for question in questions[:answered]:
            await terminal.expect(question)
            await terminal.keys("Enter")
        await terminal.expect(questions[answered])
        await terminal.keys("C-c")
        shown = await terminal.prompt()
        assert "rlproxy: Interrupted; nothing was written." in shown and "Traceback" not in shown
    assert person.files() == {}
