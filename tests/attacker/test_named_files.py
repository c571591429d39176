"""A model server that names files of this machine: pipes, devices, links, folders, `/proc`, and what never ends.

None is waited for, none is read that lies elsewhere, and nobody else waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import pytest

import proxy
from config.settings import load
from proxy.backends import gguf_files, make_backend
from proxy.backends.gguf_head import NoGguf, read_head
from proxy.backends.model_files import ModelFolders, is_hub_id, open_regular
from proxy.cli.init import discovery, weights_search
from proxy.cli.init.discovery import DiscoveredServer, model_facts
from proxy.core.errors import ProxyError
from scripts.fakes.hostile import HostileServer
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.lmstudio import FakeLMStudio
from scripts.fakes.ollama import FakeOllama
from tests.harness.llamacpp import with_versions
from tests.harness.ollama import make_proxy
from tests.proxy.cli.init.gguf_files import write_head

PRODUCT = Path(proxy.__file__).parent
AT_ONCE_S = 20.0  # a pipe would be waited for without end


class Opened:
    """Which files rlproxy opened, and in which threads, as Python itself tells."""

    def __init__(self) -> None:
        self.by: list[tuple[str, int]] = []
        self.listens = False
        sys.addaudithook(self._hear)  # for as long as the process runs

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.listens and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and not frame.f_code.co_filename.startswith(str(PRODUCT)):
                if frame.f_code.co_filename.startswith(str(PRODUCT.parent / "scripts")):
                    return  # a fake, which stands for another process
                frame = frame.f_back
            if frame is not None:
                self.by.append((os.fsdecode(arguments[0]), threading.get_ident()))


OPENED = Opened()


@pytest.fixture
def opened() -> Iterator[Opened]:
    OPENED.by.clear()
    OPENED.listens = True
    yield OPENED
    OPENED.listens = False


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual folders of models are none of these tests'."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "unused"))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def _pipe(file: Path) -> str:
    os.mkfifo(file)
    return str(file)


def _socket(file: Path) -> str:
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(file.parent):  # its name may be no longer than that
        server.bind(file.name)
    return str(file)


def _folder(file: Path) -> str:
    file.mkdir()
    return str(file)


def _link(file: Path, target: str) -> str:
    file.symlink_to(target)
    return str(file)


def _private(folder: Path) -> str:
    write_head(folder / "private.gguf", {"general.name": "private"})
    return str(folder / "private.gguf")


# What a server names; `models` is a folder that the settings name.
NAMED: dict[str, Callable[[Path, Path], str]] = {
    "a pipe": lambda models, elsewhere: _pipe(models / "p.gguf"),
    "a pipe elsewhere": lambda models, elsewhere: _pipe(elsewhere / "p.gguf"),
    "a socket": lambda models, elsewhere: _socket(models / "s.gguf"),
    "a folder": lambda models, elsewhere: _folder(models / "f.gguf"),
    "the folder of models": lambda models, elsewhere: str(models),
    "a link to a pipe": lambda models, elsewhere: _link(models / "l.gguf", _pipe(models / "p.gguf")),
    "a link to a private file": lambda models, elsewhere: _link(models / "l.gguf", _private(elsewhere)),
    "a folder that is a link": lambda models, elsewhere: (
        _private(elsewhere) and _link(models / "l", str(elsewhere)) + "/private.gguf"
    ),
    "a link to itself": lambda models, elsewhere: _link(models / "l.gguf", "l.gguf"),
    "a device": lambda models, elsewhere: "/dev/zero",
    "a device behind a link": lambda models, elsewhere: _link(models / "l.gguf", "/dev/zero"),
    "the terminal": lambda models, elsewhere: "/dev/tty",
    "a file of /proc": lambda models, elsewhere: "/proc/self/environ",
    "the kernel's log": lambda models, elsewhere: "/proc/kmsg",
    "an open file": lambda models, elsewhere: "/proc/self/fd/0",
    "a private file": lambda models, elsewhere: _private(elsewhere),
    "a way out": lambda models, elsewhere: _private(elsewhere) and f"{models}/../elsewhere/private.gguf",
    "nothing": lambda models, elsewhere: str(models / "nothing.gguf"),
    "a relative path": lambda models, elsewhere: "private.gguf",
    "a home": lambda models, elsewhere: "~/.ssh/id_ed25519",
    "half a path": lambda models, elsewhere: f"{models}/a\0b",
    "a long path": lambda models, elsewhere: f"{models}/{'a' * 100_000}",
    "a path that is not text": lambda models, elsewhere: f"{models}/\udcff",
}


@pytest.fixture
def named(models: Path, elsewhere: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(elsewhere)
    return NAMED[what](models, elsewhere)


@pytest.mark.parametrize("what", NAMED)
def test_it_is_not_opened(models: Path, named: str, what: str, opened: Opened) -> None:
    folders = ModelFolders([models])
    started = time.monotonic()
    for read in (folders.open, folders.read_small):
        with pytest.raises((OSError, ValueError)):
            read(named)
    assert time.monotonic() - started < AT_ONCE_S
    assert not [path for path, _ in opened.by if "elsewhere" in path or path.startswith(("/dev", "/proc"))]


@pytest.mark.parametrize("what", NAMED)
async def test_ollamas_own_file(tmp_path: Path, models: Path, named: str, what: str, opened: Opened) -> None:
    """The fifo of a Modelfile hung the process beyond SIGTERM."""
    ollama = FakeOllama(tmp_path / "ollama", "0.34.4")
    shown = {"modelfile": f"FROM {named}\n"}
    await ollama.start()
    ollama.models["fake:latest"]["files"] = [named] if "\0" not in named and "\udcff" not in named else ["/\\"]
    running = make_proxy(tmp_path / "home", ollama.url, **{"backend.models_dir": models})
    await running.start()
    try:
        async with asyncio.timeout(AT_ONCE_S):
            await with_versions(running, 1)
            status, body = await running.post("/rl/promote/1")
            assert status in (501, 502), (body, shown)
            assert (await running.get("/rl/status"))["live"] == 0
            assert (await running.chat("hi")).status == 200
    finally:
        async with asyncio.timeout(AT_ONCE_S):
            await running.stop()
            await ollama.stop()
    loop = threading.get_ident()
    assert not [path for path, thread in opened.by if path == named and thread == loop]
    assert not [path for path, _ in opened.by if "elsewhere" in path or path.startswith("/dev/z")]


async def test_a_model_below_a_folder_of_the_settings_is_read_in_a_thread(
    tmp_path: Path, models: Path, opened: Opened
) -> None:
    """Also behind links: of the folder itself, and within it, as the hub's cache has them."""
    ollama = FakeOllama(models / "ollama", "0.34.4")
    await ollama.start()
    (tmp_path / "link").symlink_to(models)
    running = make_proxy(tmp_path / "home", ollama.url, **{"backend.models_dir": tmp_path / "link"})
    await running.start()
    await with_versions(running, 1)
    status, body = await running.post("/rl/promote/1")
    assert status == 200, body
    await running.stop()
    await ollama.stop()
    threads = {thread for path, thread in opened.by if "/blobs/" in path}
    assert threads and threading.get_ident() not in threads


async def test_the_words_of_a_refusal(tmp_path: Path, models: Path, elsewhere: Path) -> None:
    ollama = FakeOllama(tmp_path / "ollama", "0.34.4")
    ollama.models["fake:latest"]["files"] = [private := _private(elsewhere)]
    await ollama.start()
    running = make_proxy(tmp_path / "home", ollama.url, **{"backend.models_dir": models})
    await running.start()
    await with_versions(running, 1)
    _, body = await running.post("/rl/promote/1")
    assert body["error"]["message"].endswith(
        f"Ollama takes whole models only, and {private} is not opened: it is not below a folder of models that the "
        "settings name: backend.models_dir is for that; name a copy of it with backend.gguf, or let rlproxy's user "
        "read it."
    )
    await running.stop()
    await ollama.stop()


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    server = HostileServer(404, ("content-type: application/json",))
    await server.start()
    yield server
    await server.stop()


# A folder that a server says it has loaded; of what is in it, these are read.
ROOTS: dict[str, Callable[[Path, Path], str]] = {
    "a pipe in it": lambda models, elsewhere: str(models),
    "a folder elsewhere": lambda models, elsewhere: str(elsewhere),
    "a link": lambda models, elsewhere: _link(models / "l", str(elsewhere)),
    "a process": lambda models, elsewhere: "/proc/self/root" + str(elsewhere),
    "devices": lambda models, elsewhere: "/dev",
    "half a path": lambda models, elsewhere: f"{models}\0",
    "a home": lambda models, elsewhere: "~",
}


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang"])
@pytest.mark.parametrize("what", ROOTS)
async def test_the_folder_that_a_server_has_loaded(
    tmp_path: Path, models: Path, elsewhere: Path, server: HostileServer, kind: str, what: str, opened: Opened
) -> None:
    for name in ("config.json", "generation_config.json"):
        os.mkfifo(models / name)
        (elsewhere / name).write_text('{"model_type": "private", "temperature": 0.123}')
    root = ROOTS[what](models, elsewhere)
    entry = {"id": "m", "root": root, "object": "model"}
    server.regular = {
        "/v1/models": json.dumps({"data": [entry]}).encode(),
        "/server_info": json.dumps({"model_path": root, "sampling_defaults": "model"}).encode(),
    }
    flags = {"home": tmp_path / "home", "backend.kind": kind, "backend.url": server.url, "backend.models_dir": models}
    backend = make_backend(load(flags, environ={}).settings, FakeLauncher())
    async with aiohttp.ClientSession() as http:
        async with asyncio.timeout(AT_ONCE_S):
            await backend.start(http, lambda: None)  # type: ignore[arg-type, return-value]
            await backend.ready()
            told = await backend.describe()
        await backend.stop()
    assert told.architecture is None and 0.123 not in backend.served.sampling.values()
    assert not [path for path, _ in opened.by if "elsewhere" in path]


async def test_a_config_without_an_end_is_not_read_to_its_end(models: Path) -> None:
    with (models / "config.json").open("wb") as file:
        file.truncate(2**40)  # of holes
    with pytest.raises(OSError, match="over"):
        ModelFolders([models]).read_small(models / "config.json")


def test_a_head_without_an_end_is_not_read_to_its_end(models: Path) -> None:
    """A list of four billion empty texts; keys of megabytes each, without an end."""
    import struct

    lists, keys = models / "lists.gguf", models / "keys.gguf"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 5000)
    with lists.open("wb") as file:
        file.write(head + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 2**32))
        file.truncate(2**40)
    value = struct.pack("<IIQ", 9, 0, 2**26)
    with keys.open("wb") as file:
        file.write(head)
        for n in range(12):
            file.seek(len(head) + n * (13 + len(value) + 2**26))
            file.write(struct.pack("<Q5s", 5, b"k%04d" % n) + value)
        file.truncate(2**40)
    started = time.monotonic()
    for file_name in (lists, keys):
        with pytest.raises(NoGguf):
            read_head(file_name)
    assert time.monotonic() - started < AT_ONCE_S


@pytest.mark.parametrize("what", NAMED)
async def test_init_reads_no_file_that_a_server_names_elsewhere(
    models: Path, named: str, what: str, server: HostileServer, opened: Opened
) -> None:
    folders = ModelFolders([models])
    server.regular = {"/api/show": json.dumps({"modelfile": f"FROM {named}\n"}).encode()}
    async with asyncio.timeout(AT_ONCE_S):
        shown = await model_facts(DiscoveredServer("ollama", server.url), "m", models, folders)
        running = DiscoveredServer("llamacpp", server.url, about={"model_path": named})
        loaded = await model_facts(running, "m", models, folders)
    assert (shown.file, loaded.file) == (None, None)
    assert "private" not in str(shown.about) + str(loaded.about)
    assert not [path for path, _ in opened.by if "elsewhere" in path or path.startswith("/dev/z")]


async def test_init_reads_what_the_person_has_typed_themselves(
    models: Path, elsewhere: Path, server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line of the server here names the file that it says."""
    running = DiscoveredServer("llamacpp", server.url, about={"model_path": (private := _private(elsewhere))})
    monkeypatch.setattr(discovery.commands, "option", lambda url, program, name: private if name == "-m" else None)
    assert (await model_facts(running, "m", models, ModelFolders([models]))).file == Path(private)


def test_init_waits_for_no_config(models: Path) -> None:
    (models / "model.safetensors").touch()
    (models / "config.json").write_text("{}")
    assert weights_search.propose("vllm", "m", str(models), {})[0].spec == str(models)
    (models / "config.json").unlink()
    os.mkfifo(models / "config.json")
    assert weights_search.propose("vllm", "m", str(models), {}) == []


@pytest.mark.parametrize("how", ["a link", "a pipe", "a socket"])
async def test_lm_studios_file(tmp_path: Path, models: Path, elsewhere: Path, how: str, opened: Opened) -> None:
    studio = FakeLMStudio(models)
    await studio.start()
    content = studio.file.read_bytes()
    private = elsewhere / "private.gguf"
    private.write_bytes(content)
    studio.file.unlink()
    {"a link": lambda: studio.file.symlink_to(private), "a pipe": lambda: os.mkfifo(studio.file),
     "a socket": lambda: _socket(studio.file)}[how]()  # fmt: skip
    flags = {"home": tmp_path / "home", "backend.kind": "lmstudio", "backend.url": studio.url}
    backend = make_backend(load({**flags, "backend.models_dir": models}, environ={}).settings, FakeLauncher())
    async with aiohttp.ClientSession() as http:
        async with asyncio.timeout(AT_ONCE_S):
            await backend.start(http, lambda: None)  # type: ignore[arg-type, return-value]
            with pytest.raises(ProxyError, match=r"name the right one with backend\.gguf"):
                await backend.load("fake@v1", adapter(tmp_path))
        await backend.stop()
    await studio.stop()
    assert not [path for path, _ in opened.by if path == str(private)]


def adapter(folder: Path) -> Path:
    (folder / "v0001").mkdir(exist_ok=True)
    (folder / "v0001" / "adapter_model.safetensors").write_bytes(b"x")
    return folder / "v0001"


@pytest.mark.parametrize("what", ["a private file", "a file of /proc", "a link to a private file", "a way out"])
async def test_no_weights_train_that_only_the_server_has_named(
    tmp_path: Path, models: Path, named: str, what: str, server: HostileServer
) -> None:
    flags: dict[str, Any] = {"home": tmp_path, "backend.kind": "mlx", "backend.url": server.url}
    for model, expected in ((named, None), ("owner/name", "owner/name"), (str(models), str(models))):
        server.regular = {"/v1/models": json.dumps({"data": [{"id": model}]}).encode()}
        backend = make_backend(load({**flags, "backend.models_dir": models}, environ={}).settings, FakeLauncher())
        async with aiohttp.ClientSession() as http:
            await backend.start(http, lambda: None)  # type: ignore[arg-type, return-value]
            assert backend.weights == expected
            await backend.stop()
    chosen = make_backend(load({**flags, "backend.model": named}, environ={}).settings, FakeLauncher())
    assert chosen.weights == named


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_nor_is_a_file_of_the_settings_waited_for(models: Path, kind: str) -> None:
    """`backend.gguf` is a person's word, and may still be no file."""
    path = NAMED[kind](models, models)
    assert "it is not a regular file" in str(gguf_files.unreadable_reason(Path(path)))
    with pytest.raises(OSError, match="regular"):
        open_regular(Path(path))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("Qwen/Qwen2.5-0.5B", True), ("../x", False), ("a/..", False), ("/a", False), ("a/b/c", False), ("~/a", False),
     ("a", False), ("", False), ("a/b\n", False), ("./a", False)],
)  # fmt: skip
def test_what_the_hub_calls_a_model_is_no_path(spec: str, expected: bool) -> None:
    assert is_hub_id(spec) is expected
