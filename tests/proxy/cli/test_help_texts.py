"""What holds for every command: a section, examples that can be typed, `--json`, the exit codes, the man page, TAB."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from proxy.cli.app import app
from proxy.cli.help_texts import EXAMPLES, EXITS, SECTIONS, commands_of
from proxy.core.address_file import ADDRESS_FILE
from scripts.docs import man
from scripts.harness.in_process import Proxy
from tests.harness.newcomer import Newcomer

GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = dict(commands_of(GROUP))
NO_JSON = {
    "serve": "it runs until it is told to stop",
    "chat": "it is for a person at a terminal; programs have /v1/chat/completions",
    "report": "it writes a page; adapters, runs and export have its figures as JSON",
    "service logs": "it passes on what the service manager prints",
}
# What needs no running proxy, and what these end with where there is none and nothing else either.
WITHOUT = {
    "init": 2, "plan": None, "serve": None, "stop": 3, "chat": 2, "watch": 2,
    "fix": 3, "skip": 3, "ask": 3, "config show": 0, "keys create": 0, "keys list": 0,
    "keys revoke": 0, "keys off": 0, "backup": 1, "restore": 1, "encrypt": None, "decrypt": None,
    "migrate": 1, "audit verify": 1,
    "disconnect": 1, "eval": 1, "import": 1, "report": 1, "model export": 1, "service install": None,
    "service remove": None, "service status": None, "service logs": None,
}  # fmt: skip


def ended(home: Path, *args: str) -> tuple[int, str]:
    """The command in this process: its exit code, and all that it said."""
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("RLPROXY_")}
    env = {**clean, "RLPROXY_HOME": str(home), "RLPROXY_SERVER__PORT": "1", "HOME": str(home)}
    result = CliRunner().invoke(app, args, env=env, prog_name="rlproxy")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_every_command_has_a_section_a_sentence_and_examples_that_can_be_typed() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(GROUP.commands)
    assert EXAMPLES.keys() == COMMANDS.keys() and EXITS.keys() <= COMMANDS.keys()
    for path, command in COMMANDS.items():
        assert command.help and all(param.help or param.param_type_name == "argument" for param in command.params), path
        for example in EXAMPLES[path]:
            words = shlex.split(example)
            assert words[: len(path.split())] == path.split(), example
            command.make_context(path, words[len(path.split()) :])  # raises where it is wrong use


def test_help_of_every_command(tmp_path: Path) -> None:
    code, said = ended(tmp_path, "--help")
    assert code == 0 and all(f"\n{title}:\n" in said for title in SECTIONS) and "3 no proxy answers" in said
    for path in COMMANDS:
        code, said = ended(tmp_path, *path.split(), "--help")
        assert code == 0 and said.startswith(f"Usage: rlproxy {path} ") and f"\n    rlproxy {path}" in said


def test_every_command_prints_json_or_has_a_reason() -> None:
    lacks = {path for path, command in COMMANDS.items() if not any("--json" in p.opts for p in command.params)}
    assert lacks == set(NO_JSON)


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_wrong_use_is_2(tmp_path: Path, path: str) -> None:
    code, said = ended(tmp_path, *path.split(), "--nonsense")
    assert code == 2 and "No such option" in said


def test_no_proxy_is_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in COMMANDS:
        expected = WITHOUT.get(path, 3)
        if expected is None:  # it would start something, ask a person, or depends on the machine
            continue
        code, said = ended(tmp_path, *shlex.split(EXAMPLES[path][0]))
        assert code == expected, (path, code, said)
        assert "Traceback" not in said
        if expected == 3 and path not in ("doctor", "stop"):  # they say who holds the home
            assert "rlproxy: no rlproxy answers at" in said and "`rlproxy serve`" in said, path
    assert not (tmp_path / "rated.jsonl").exists(), "an export of before would have been emptied"


async def test_refused_is_1_and_done_is_0(cli: Proxy) -> None:
    await cli.chat("hi")
    for words, expected in (
        ("good", 0), ("undo", 0), ("undo", 1), ("train", 1), ("promote v9", 1), ("runs 99", 1), ("rollback", 1),
        ("keys revoke nobody", 1), ("cancel", 1), ("good --id rl-unknown", 1), ("forget session trip", 1),
        ("status --json", 0), ("runs --json", 0), ("adapters --json", 0), ("pause --json", 0), ("export --json", 0),
    ):  # fmt: skip
        code, said = await asyncio.to_thread(ended, cli.home, *words.split())
        assert code == expected, (words, code, said)
        assert "Traceback" not in said
    assert (cli.home / ADDRESS_FILE).exists()


def test_the_man_page_is_of_this_command_line() -> None:
    assert man.PAGE.read_text(encoding="utf-8") == man.page(), "run python -m scripts.docs.man"
    for path in COMMANDS:
        assert f".SS rlproxy {path}" in man.page()


def test_the_man_page_is_sound_roff() -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    read = subprocess.run(["groff", "-man", "-Tutf8", "-ww", man.PAGE], capture_output=True, text=True)
    assert read.returncode == 0 and not read.stderr and "no proxy answers" in read.stdout


class Bash:
    """A real one at a terminal of its own."""

    def __init__(self, person: Newcomer) -> None:
        program = person.bin / "rlproxy"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m proxy.cli "$@"\n')
        program.chmod(0o755)
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.execve("/bin/bash", ["bash", "--norc", "-i"], {**person.env, "PS1": "ready> ", "TERM": "dumb"})
        self.pid = pid
        self.until("ready> ")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, text: str) -> str:
        shown, end = "", time.monotonic() + 60
        while text not in shown:
            assert select.select([self._terminal], [], [], max(0, end - time.monotonic()))[0], shown
            shown += os.read(self._terminal, 4096).decode("utf-8", "replace")
        return shown

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self.pid, 0)


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="no bash here")
async def test_tab_completes_in_a_real_bash(tmp_path: Path) -> None:
    person = Newcomer(tmp_path)
    bash = Bash(person)
    try:
        bash.type("rlproxy --install-completion; echo done-$?\n")
        assert "bash completion installed" in await asyncio.to_thread(bash.until, "done-0")
        script = person.home / ".bash_completions/rlproxy.sh"
        assert script.exists() and str(script) in (person.home / ".bashrc").read_text()
        bash.type(f"source {script}; echo again-$?\n")
        await asyncio.to_thread(bash.until, "again-0")
        bash.type("rlproxy sta\t")
        await asyncio.to_thread(bash.until, "status ")
        bash.type("--wa\t")
        await asyncio.to_thread(bash.until, "--watch ")
        bash.type("\x15rlproxy service in\t")
        await asyncio.to_thread(bash.until, "install ")
    finally:
        bash.close()


@pytest.mark.parametrize(
    ("shell", "has"),
    [
        ("bash", "complete -o default -F _rlproxy_completion rlproxy"),
        ("zsh", "#compdef rlproxy"),
        ("fish", "--command rlproxy"),
    ],
)
async def test_the_script_of_each_shell(tmp_path: Path, shell: str, has: str) -> None:
    person = Newcomer(tmp_path)
    code, out, _ = await person.run("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert code == 0 and has in out and f"_RLPROXY_COMPLETE=complete_{shell}" in out
    if (program := shutil.which(shell)) is not None:
        assert subprocess.run([program, "-n"], input=out, text=True).returncode == 0
