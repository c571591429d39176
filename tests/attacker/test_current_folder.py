"""Somebody whose folder rlproxy is started in, a cloned repository for one: it has our packages' names, and Python's.

Each module in it leaves a mark when it is imported. Every command is started there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main

from proxy.cli.app import app
from proxy.cli.service.managers import Systemd, find
from scripts.fakes.ollama import FakeOllama
from tests.harness import tiny
from tests.harness.newcomer import Newcomer
from tests.trainer.formats.test_gguf import make_adapter
from tests.trainer.formats.test_merge_gguf import layers_of, make_base
from trainer.launch import LaunchError, LocalLauncher

OURS = ("config", "proxy", "store", "trainer", "scripts", "tests")
OTHERS = (
    "json",
    "random",
    "typing",
    "asyncio",
    "subprocess",
    "sitecustomize",
    "aiohttp",
    "torch",
    "numpy",
    "gguf",
    "pip",
)
EVERY_COMMAND = """
import json, sys
from proxy.cli.app import app
for words in json.loads(sys.argv[1]):
    try:
        app([*words, "--help"], prog_name="rlproxy")
    except SystemExit as end:
        assert end.code == 0, words
"""
RLPROXY = str(Path(sys.executable).with_name("rlproxy"))
START_S = 120.0


@pytest.fixture(params=["packages", "plain folders"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    folder, marks = tmp_path / "cloned", tmp_path / "marks"
    folder.mkdir()
    trap = f"open({str(marks)!r}, 'a').write(__name__ + '\\n')\nraise SystemExit('taken from the current folder')\n"
    for name in OURS:
        (folder / name).mkdir()
        (folder / name / "notes.txt").write_text("mine")
        if request.param == "packages":
            for file in ("__init__.py", "__main__.py"):
                (folder / name / file).write_text(trap)
    if request.param == "packages":
        for name in OTHERS:
            (folder / f"{name}.py").write_text(trap)
    yield folder
    assert not marks.exists(), marks.read_text()


@pytest.fixture
async def person(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Newcomer]:
    newcomer = Newcomer(tmp_path / "machine", ollama.url)
    yield newcomer
    await newcomer.stop_proxy()


async def run(here: Path, env: dict[str, str], *command: str) -> tuple[int, str]:
    """An empty entry of PYTHONPATH is the current folder too: who appends to it often has one."""
    child = await asyncio.create_subprocess_exec(
        *command, cwd=here, env=env, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await child.communicate()
    return child.returncode or 0, said.decode()


def commands(group: typer.core.TyperGroup, *words: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*words, name)
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, *words, name)


# `test_the_built_in_server` and `test_a_service_starts_in_its_persons_home` have plain folders, too; others start their
# processes the same ways.
only_packages = pytest.mark.parametrize("here", ["packages"], indirect=True)


@only_packages
async def test_every_command_starts(here: Path, person: Newcomer) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    found = [list(words) for words in commands(group)]
    assert len(found) > 30
    code, said = await run(here, person.env, RLPROXY, "--help")
    assert code == 0 and "Usage: rlproxy" in said, said
    (script := here.parent / "every_command.py").write_text(EVERY_COMMAND)  # a process for each took half a minute
    code, said = await run(here, person.env, sys.executable, str(script), json.dumps(found))
    assert code == 0 and said.count("Usage: rlproxy") == len(found), said


@only_packages
async def test_init_serve_and_doctor(here: Path, person: Newcomer) -> None:
    answers = person.answers(model="fake", weights="")
    code, said = await run(here, person.env, RLPROXY, "init", "--answers", answers)
    assert code == 0 and "rated good, and the status shows it" in said, said
    code, said = await run(here, person.env, RLPROXY, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(said)}
    assert checks["proxy"]["state"] == checks["backend"]["state"] == "ok", said
    for words in (("status",), ("config", "show"), ("keys", "list")):
        code, said = await run(here, person.env, RLPROXY, *words)
        assert code == 0, said


async def test_a_service_starts_in_its_persons_home(here: Path, person: Newcomer, tmp_path: Path) -> None:
    """systemd's working folder is that home, whatever it holds."""
    command = [sys.executable, "-P", "-m", "proxy.cli", "serve", "--home", str(tmp_path / "home")]
    if (manager := find(tmp_path / "home")) is not None:
        assert json.dumps(command[1]) in manager.text() or "<string>-P</string>" in manager.text()
    assert '"-P" "-m" "proxy.cli"' in Systemd(tmp_path, "x", command).text()
    code, said = await run(here, person.env, *command[:4], "--help")
    assert code == 0 and "Usage: rlproxy" in said, said


@only_packages
async def test_a_run_and_the_look_at_its_weights(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make_model(tmp_path / "tiny")
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model))
    _stand_in(here, monkeypatch)
    job = await LocalLauncher().start(folder, threads=1, nice=0)
    events = [event async for event in job.events()]
    assert await job.wait() == 0 and events[-1]["status"] == "passed", (folder / "trainer.log").read_text()
    found = await LocalLauncher().probe(str(model), {"conversations": []}, threads=1, nice=0, log=tmp_path / "log")
    assert found["architecture"] == "llama"
    command = [sys.executable, "-P", "-m", "trainer", str(folder)]  # as a person types it: trainer/CONTRACT.md
    code, said = await run(here, {**os.environ, "PYTHONPATH": str(tiny.__file__).partition("/tests/")[0]}, *command)
    assert code == 0, said


async def test_the_built_in_server(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make_model(tmp_path / "tiny")
    _stand_in(here, monkeypatch)
    server = await LocalLauncher().start_server(str(model), "tiny", threads=1, key="k" * 20, log=tmp_path / "log")
    await server.stop()


@only_packages
async def test_the_converters(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make_model(tmp_path / "tiny")
    base = make_base(tmp_path / "base.gguf", "llama")
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    make_adapter(tmp_path / "peft", {"model.layers.0.self_attn.q_proj": (8, 8)})
    _stand_in(here, monkeypatch)
    await LocalLauncher().fuse(tmp_path / "adapter", base, tmp_path / "fused.gguf")
    await LocalLauncher().mlx(tmp_path / "peft", tmp_path / "mlx")
    assert (tmp_path / "fused.gguf").exists() and (tmp_path / "mlx").is_dir()
    with pytest.raises(LaunchError, match="does not fit this model"):  # it has looked into both
        await LocalLauncher().gguf(tmp_path / "adapter", str(model), tmp_path / "adapter.gguf")


def _stand_in(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "sub", os.environ.get("PYTHONPATH", "")]))
