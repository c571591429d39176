"""Ollama's own llama-server is offered where a version at Ollama would be large, and only where it can be run."""

from __future__ import annotations

import asyncio
import io
import shlex
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import load
from proxy.cli.init import own_server, plan
from proxy.cli.init.answers import Answers
from proxy.cli.init.console import Console
from proxy.cli.init.discovery import DiscoveredServer, ListedModel
from proxy.cli.init.environment import ThisMachine
from proxy.cli.init.questions import Choices, Interview, Surroundings
from scripts.fakes.ollama import FakeOllama

MACHINE = ThisMachine(None, "cpu", None, 16.0, 8.0, 100.0)
NEW = "0.34.1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's file, and an Ollama that is installed with its llama-server."""
    for name in ("bin/ollama", "lib/ollama/llama-server"):
        program = tmp_path / "it's here" / name
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "it's here" / "bin"))
    monkeypatch.setattr(own_server, "LARGE", 1000)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" * 1000)
    return model


def offered(file: Path | None, version: str = NEW, kind: str = "cpu", context: int | None = None) -> Any:
    server = DiscoveredServer("ollama", "http://127.0.0.1:11434", (ListedModel("m:8b"),), version)
    return own_server.offer(server, "m:8b", file, context, MACHINE._replace(kind=kind))


def test_it_is_run_on_ollamas_own_file(file: Path, tmp_path: Path) -> None:
    found = offered(file)
    program = tmp_path / "it's here" / "lib" / "ollama" / "llama-server"
    assert shlex.split(found.command) == [str(program), "-m", str(file), "--alias", "m:8b", "-c", "4096"]
    assert shlex.split(offered(file, context=512).command)[-1] == "512"
    assert "GB" in found.reason and "stays in memory" in found.lost and "own_server = true" in found.note


def test_where_it_is_not_offered(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(file) and offered(file, kind="metal")
    assert offered(file, kind="cuda") is None, "it was not tried with a GPU of NVIDIA"
    assert offered(file, "0.34.0") is None, "that one takes LoRA files"
    assert offered(file, "") is None and offered(None) is None
    assert offered(tmp_path / "no such file") is None
    monkeypatch.setattr(own_server, "LARGE", 4001)
    assert offered(file) is None
    monkeypatch.setattr(own_server, "LARGE", 1000)
    (tmp_path / "it's here" / "lib" / "ollama" / "llama-server").unlink()
    monkeypatch.setattr(own_server.psutil, "process_iter", lambda names: [])
    assert offered(file) is None


@pytest.fixture
async def ollama(tmp_path: Path, file: Path) -> AsyncIterator[FakeOllama]:
    fake = FakeOllama(tmp_path / "ollama", NEW)
    await fake.start()
    yield fake
    await fake.stop()


async def choose(home: Path, ollama: FakeOllama, **answers: Any) -> Choices:
    now = load({"home": home, "backend.kind": "ollama", "backend.url": ollama.url}, environ={}).settings
    server = DiscoveredServer("ollama", ollama.url, (ListedModel("fake"),), ollama.version)
    asked = Interview(Surroundings([server], [], MACHINE, now, None), Answers(weights="", **answers), None, home)
    return await asyncio.to_thread(asked.choices)


async def test_who_is_not_asked_is_told(tmp_path: Path, ollama: FakeOllama) -> None:
    found = await choose(tmp_path, ollama)
    assert found.kind == "ollama" and not found.command and "own_server = true" in found.offer_note
    silent = await choose(tmp_path, ollama, own_server=False)
    assert silent == replace(found, offer_note="")
    made = plan.make(tmp_path, found)
    assert found.offer_note in made.notes


async def test_who_takes_it_gets_a_server_that_rlproxy_runs(tmp_path: Path, ollama: FakeOllama) -> None:
    (tmp_path / "rlproxy.toml").write_text(f'[backend]\nkind = "ollama"\nurl = "{ollama.url}"\ngguf = "/x.gguf"\n')
    found = await choose(tmp_path, ollama, own_server=True)
    assert (found.kind, found.url, found.model, found.offer_note) == ("llamacpp", "", "fake", "")
    settings = plan.make(tmp_path, found).settings
    words = shlex.split(settings.backend.command)
    assert settings.backend.kind == "llamacpp" and not settings.backend.url and settings.backend.gguf is None
    assert Path(words[2]).read_bytes().startswith(b"GGUF the person's own model")
    assert words[words.index("--alias") + 1] == "fake"


@pytest.mark.parametrize(("typed", "kind"), [("", "llamacpp"), ("y", "llamacpp"), ("n", "ollama")])
async def test_a_person_is_asked(
    tmp_path: Path, ollama: FakeOllama, monkeypatch: pytest.MonkeyPatch, typed: str, kind: str
) -> None:
    """After the server and the weights; Enter takes it."""
    now = load({"home": tmp_path, "backend.kind": "ollama", "backend.url": ollama.url}, environ={}).settings
    server = DiscoveredServer("ollama", ollama.url, (ListedModel("fake"),), ollama.version)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"1\n-\n{typed}\n\n\n"))
    shown = io.StringIO()
    asked = Interview(Surroundings([server], [], MACHINE, now, None), Answers(), Console(shown), tmp_path)
    found = await asyncio.to_thread(asked.choices)
    assert found.kind == kind and not found.offer_note, "who was asked is not told once more"
    assert "What is lost" in shown.getvalue() and "Shall rlproxy run it? [Y/n]" in shown.getvalue()
