"""Every command of every page: run as it stands where it can be, else checked by what would run it.

A page's commands run in its order, in an empty home, against a whole proxy over a fake backend and a fake trainer that
has made three versions. What differs: the port, and the model's name. `docs_blocks` says what is not run, and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from config.errors import SettingsError
from config.settings import load
from proxy.backends import make_backend
from proxy.core.address_file import ADDRESS_FILE
from proxy.core.errors import ProxyError
from scripts.fakes.backend import FakeBackend
from scripts.fakes.keyring import FileKeyring
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from store.file.db_key import find
from tests.harness import docs_blocks
from tests.harness.docs_blocks import ELSEWHERE, OUR_PORT, PAGES, PLAIN, ROOT, SHELL, Line, Wrong
from tests.harness.polling import Polls
from tests.harness.runs import until
from tests.proxy.cli.imports.test_harbor import trial
from tests.proxy.cli.imports.test_verifiers import recorded
from trainer.launch import LocalLauncher

STOPPED: Final = (("restore",), ("encrypt",), ("decrypt",))  # these want a home that nobody serves
MODEL: Final = re.compile(r'"model": "[^"@]*"')
# What a page rightly lets fail: exit codes beside 0.
MAY_END: Final[Mapping[tuple[str, ...], set[int]]] = {("doctor",): {0, 1}}  # the fake's weights are nowhere
NAMES: Final = [str(page.relative_to(ROOT)) for page in PAGES]


class House:
    """A person's machine, as a page finds it: rlproxy runs, some answers and three versions are there."""

    def __init__(self, folder: Path, backend: FakeBackend) -> None:
        self.folder = folder
        self.home = folder / "person"
        self._launcher = FakeLauncher()
        self.proxy = Proxy(self.home / ".rlproxy", backend, self._launcher)
        self._curlrc = self.home / ".curlrc"

    async def open(self) -> None:
        self.home.mkdir()
        self._curlrc.write_text("fail-with-body\n")
        await self._start()
        for version in (1, 2, 3):
            for word in ("good", "bad"):
                await self.proxy.say(f"something {word}", headers={"x-rl-session": "trip"})
                assert (await self.proxy.rate(completion_id="last", rating=word))[0] == 201
            assert (await self.proxy.post("/rl/train"))[0] == 202
            await until(self.proxy, live=version)
        assert (await self.proxy.post("/rl/promote/base"))[0] == 200
        await self.proxy.say("Where to in May?", headers={"x-rl-session": "trip"})
        await self.proxy.say("And what is new?")
        assert (await self.proxy.rate(completion_id="last", rating="good"))[0] == 201
        await self._harnesses()
        self._launcher.hold = True  # the runs that a page starts go on until it ends them

    async def _harnesses(self) -> None:
        """What a run of verifiers and one of Harbor have left, each with one attempt that was captured."""
        (self.folder / "outputs").mkdir()
        trace = recorded()[0]
        (self.folder / "outputs/traces.jsonl").write_text(json.dumps(trace) + "\n")
        trial(self.folder / "jobs", "hello-world__aaaaaaa")
        for session in (trace["traces"][0]["id"], "hello-world__aaaaaaa__agent"):
            await self.proxy.chat("What is 1 + 1?", headers={"X-Session-ID": session})

    async def _start(self) -> None:
        settings = load({"home": self.proxy.home}, environ={}).settings
        self.proxy.secret = find(settings.store.key_from, settings.home)
        await self.proxy.start(train__start_at=1000)
        found = {"url": self.proxy.url, "pid": os.getpid(), "key": self.proxy.local}
        (self.proxy.home / ADDRESS_FILE).write_text(json.dumps(found))

    async def close(self) -> None:
        (self.proxy.home / ADDRESS_FILE).unlink()
        await self.proxy.stop()

    async def do(self, line: Line) -> None:
        """Raises Wrong."""
        if all(self._runs(words) for words in line.programs):
            if line.programs[0] and _program(line.programs[0]) == "rlproxy":
                await self._ours(line)
            else:
                await self._plain(line)
            return
        for words in line.programs:
            given, rest = docs_blocks.without_assignments(words)
            for name in given:
                docs_blocks.check_variable(name)
            if rest and rest[0] == "rlproxy":
                await self._elsewhere(rest[1:], given)
            elif rest:
                docs_blocks.check_other(rest)

    def _runs(self, words: list[str]) -> bool:
        program = _program(words)
        if program == "rlproxy":
            _, rest = docs_blocks.without_assignments(words)
            path, _, _ = docs_blocks.found_in(rest[1:])
            return path not in ELSEWHERE and "--watch" not in rest
        if program == "curl":
            return any(OUR_PORT.search(word) for word in words)
        return program in PLAIN and "deploy/.env" not in words

    async def _plain(self, line: Line) -> None:
        text = MODEL.sub('"model": ""', OUR_PORT.sub(self.proxy.url.removeprefix("http://"), line.text))
        code, said = await self._bash(text)
        if code != 0:
            raise Wrong(f"`{line.text}` ended with {code}: {said}")

    async def _bash(self, text: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", text, cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def _ours(self, line: Line) -> None:
        for words in line.programs:
            given, rest = docs_blocks.without_assignments(words)
            for name in given:
                docs_blocks.check_variable(name)
            if rest[0] != "rlproxy" or {">", "<"} & set(rest):
                raise Wrong(f"write `{line.text}` without a pipe: it cannot be run by the test")
            path, _, _ = docs_blocks.found_in(rest[1:])
            if path in STOPPED:
                await self.close()
            code, said = await self._invoke(await self._expanded(rest[1:]), given)
            if path in STOPPED:
                await self._start()
            if code not in MAY_END.get(path, {0}):
                raise Wrong(f"`{line.text}` ended with {code}: {said}")
            if path == ("train",):  # a person takes longer than it to type the next command
                await self._until_a_run_is_under_way()
            if path == ("keys", "create"):  # from the first one on everybody shows one
                self._curlrc.write_text(f'fail-with-body\nheader = "x-api-key: {self.proxy.local}"\n')

    async def _until_a_run_is_under_way(self) -> None:
        async for _ in Polls():
            async with self.proxy.http.get("/rl/status", headers={"x-api-key": self.proxy.local}) as response:
                if (await response.json())["training"]["run"] is not None:
                    return
        raise Wrong("no run began")

    async def _expanded(self, words: list[str]) -> list[str]:
        """As a shell hands them over: `~` and `$(date +%F)`."""
        if not any(re.search(r"[~$]", word) for word in words):
            return words
        spelt = " ".join(
            word if re.fullmatch(r"[\w~$(){}%+./:=-]+( [\w%+-]+\))?[\w./-]*", word) else repr(word) for word in words
        )
        code, said = await self._bash(f"printf '%s\\n' {spelt}")
        assert code == 0, said
        return said.splitlines()

    async def _invoke(self, words: list[str], given: Mapping[str, str]) -> tuple[int, str]:
        env = dict(given)
        if "RLPROXY_HOME" in env or "--home" in words:  # another home: there nobody answers
            docs_blocks.parse(words)
            return 0, ""
        return await asyncio.to_thread(_called, words, env)

    async def _elsewhere(self, words: list[str], given: Mapping[str, str]) -> None:
        """Parsed by the real command; of `serve` the settings are loaded too, and the backend made."""
        path, _, _ = docs_blocks.found_in(words)
        params = docs_blocks.parse(words)
        if path != ("serve",):
            return
        keys = {"backend": "backend.kind", "backend_url": "backend.url", "model": "backend.model", "home": "home"}
        keys |= {"host": "server.host", "port": "server.port", "weights": "train.weights", "log_level": "log.level"}
        keys |= {"start_at": "train.start_at", "threads": "backend.threads"}
        assert set(params) == set(keys), "serve has other options now"
        ours = {name: value for name, value in given.items() if name.startswith("RLPROXY_")}
        settings = load(
            {keys[k]: v for k, v in params.items()} | {"home": self.folder / "other"}, environ=ours
        ).settings
        make_backend(settings, LocalLauncher())


def _called(words: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    """The real command, without a process of its own: starting Python takes longer than most of them."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), patch.dict(os.environ, env):
        try:
            docs_blocks.COMMAND.main(words, prog_name="rlproxy")
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


def _program(words: list[str]) -> str:
    _, rest = docs_blocks.without_assignments(words)
    return rest[0] if rest else ""


@pytest.fixture
async def house(tmp_path: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    for name in list(os.environ):
        if name.startswith(("RLPROXY_", "XDG_", "CLAUDE_", "CODEX_", "OPENCLAW_", "CONTINUE_", "LLM_")):
            monkeypatch.delenv(name)
    import keyring

    before = keyring.get_keyring()
    keyring.set_keyring(FileKeyring(tmp_path / "ring.json"))
    house = House(tmp_path, backend)
    monkeypatch.setenv("HOME", str(house.home))
    monkeypatch.chdir(tmp_path)
    try:
        await house.open()
        yield house
        await house.close()
    finally:
        keyring.set_keyring(before)


def shell(page: Path, text: str | None = None) -> list[Line]:
    return [
        line
        for block in docs_blocks.blocks(page, text)
        if block.language in SHELL
        for line in docs_blocks.commands(block)
    ]


def together() -> list[list[str]]:
    """The first pages are for different people and change nothing that another needs: they share a house."""
    found = [name for name in NAMES if shell(ROOT / name)]
    first = [name for name in found if name.startswith("docs/start/")]
    return [first, *([name] for name in found if name not in first)]


@pytest.mark.parametrize("pages", together(), ids=lambda pages: Path(pages[0]).stem)
async def test_commands(pages: list[str], house: House) -> None:
    for page in pages:
        for line in shell(ROOT / page):
            try:
                await house.do(line)
            except Wrong as wrong:
                raise Wrong(f"{line.where}: {wrong}") from None


WRONG: Final[Mapping[str, str]] = {
    "rlproxy god too long": "no command",
    "rlproxy status --wach": "--wach",
    "rlproxy undo --session nobody": "ended with 1",
    "rlproxy serve --backend vlm": "backend.kind",
    "rlproxy serve --backend vllm": "needs an address",
    "RLPROXY_SERVER__PROT=1 rlproxy serve": "no setting",
    "rlproxy keys revoke nobody": "ended with 1",
    "rlproxy export | find": "without a pipe",
    "curl -s http://127.0.0.1:8484/v1/nothing-here": "ended with 22",
    "curl -s https://example.org/": "neither rlproxy nor",
    "make coffee": "Makefile",
    "pip install 'rlproxy[tee]'": "no extra tee",
    "export RLPROXY_BACKEND__KIN=vllm": "no setting",
    "frobnicate --all": "neither run nor known",
}


async def test_what_a_reader_could_not_use_is_found(house: House) -> None:
    for text, why in WRONG.items():
        (line,) = shell(ROOT / "page.md", f"```sh\n{text}\n```\n")
        with pytest.raises((Wrong, SettingsError, ProxyError), match=re.escape(why)):
            await house.do(line)
