"""Cost of a version of a large model at Ollama: as a whole model, as a LoRA file, and beside its own llama-server.

`OLLAMA_LORA=…/ollama OLLAMA_WHOLE=…/ollama LLAMA_SERVER=…/llama-server scripts/bench/versions.py [--sizes 1B 3B 8B]
[--kind Q4_0] [--ways whole lora llama-server]` puts the figures of each size and way into benchmarks/versions.json,
beside those of the others. OLLAMA_LORA is one before 0.34.1, OLLAMA_WHOLE one since.

The backends of rlproxy themselves load two versions, one after the other. The model has Llama's shape and random
weights. No version is asked for an answer longer than a token. Seconds are of the wall and of the processors, for
rlproxy with its children and for the server with its own. Processor seconds do not depend on what else the machine
does. Bytes are those of the folders: the most while the first version is made, and what two leave behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from config.settings import load
from proxy.backends import make_backend
from proxy.backends.base import Backend
from proxy.backends.ollama import Ollama
from scripts.harness import large_llama
from scripts.harness.circumstances import circumstances
from scripts.harness.ollama_server import OllamaServer, base_gguf
from trainer.launch import LocalLauncher

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "versions.json"
WAYS = ("whole", "lora", "llama-server")
MODEL = "large"
LOOK_S = 0.25


class Steps:
    """Seconds of the wall by step; one step is never inside another here."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.took[name] = round(self.took.get(name, 0.0) + time.perf_counter() - began, 2)

    def timed(self, name: str, call: Any) -> Any:
        async def timed(*args: Any, **keywords: Any) -> Any:
            with self.step(name):
                return await call(*args, **keywords)

        return timed


def watch(backend: Backend, launcher: LocalLauncher, steps: Steps) -> None:
    """Each step of a load is measured where it is called."""
    launcher.fuse = steps.timed("fuse", launcher.fuse)  # type: ignore[method-assign]
    launcher.gguf = steps.timed("convert", launcher.gguf)  # type: ignore[method-assign]
    if isinstance(backend, Ollama):
        backend._uploaded = steps.timed("hash and upload", backend._uploaded)  # type: ignore[method-assign]
        backend._warm = steps.timed("into memory", backend._warm)  # type: ignore[method-assign]
        call = backend._call

        async def create(method: str, path: str, **keywords: Any) -> Any:
            if path != "/api/create":
                return await call(method, path, **keywords)
            with steps.step("create"):
                return await call(method, path, **keywords)

        backend._call = create  # type: ignore[method-assign]


class Bytes:
    """The most that some folders held together while one looked."""

    def __init__(self, *folders: Path) -> None:
        self._folders, self.most = folders, 0

    @property
    def now(self) -> int:
        total = 0
        for folder in self._folders:
            for file in folder.rglob("*"):
                with contextlib.suppress(OSError):
                    total += file.stat().st_blocks * 512
        return total

    async def look(self) -> None:
        while True:
            self.most = max(self.most, await asyncio.to_thread(lambda: self.now))
            await asyncio.sleep(LOOK_S)


class Processors:
    """Seconds of the processors: ours with all children that have ended, the server's with its own."""

    def __init__(self, server: psutil.Process | None) -> None:
        self._server = server
        self._start = self._now()

    def _now(self) -> tuple[float, float]:
        ours = os.times()
        theirs = 0.0
        if self._server is not None:
            for process in (self._server, *self._server.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    spent = process.cpu_times()
                    theirs += spent.user + spent.system + spent.children_user + spent.children_system
        return ours.user + ours.system + ours.children_user + ours.children_system, theirs

    def since(self) -> dict[str, float]:
        return {
            name: round(then - start, 1)
            for name, then, start in zip(("rlproxy", "server"), self._now(), self._start, strict=True)
        }


@contextlib.asynccontextmanager
async def served(way: str, folder: Path, gguf: Path, weights: Path) -> AsyncIterator[tuple[Backend, Any, Bytes, Steps]]:
    home = folder / "home"
    home.mkdir()
    flags: dict[str, Any] = {"home": home, "train.weights": str(weights)}
    server = None
    folders = [home]
    if way == "llama-server":
        command = f"{os.environ['LLAMA_SERVER']} -m {gguf} --alias {MODEL} -c 512 --parallel 1 --threads 2"
        flags |= {"backend.kind": "llamacpp", "backend.command": command}
    else:
        server = OllamaServer(Path(os.environ[f"OLLAMA_{way.upper()}"]), folder)
        await server.start()
        (folder / "Modelfile").write_text(f"FROM {gguf}\nPARAMETER num_ctx 512\n")
        await server.run("create", MODEL, "-f", "Modelfile")
        flags |= {"backend.kind": "ollama", "backend.url": server.url, "backend.model": MODEL}
        flags["backend.models_dir"] = server.models
        folders.append(folder / "models")
    launcher, steps = LocalLauncher(), Steps()
    backend = make_backend(load(flags, environ={}).settings, launcher)
    watch(backend, launcher, steps)
    try:
        async with aiohttp.ClientSession() as http:
            await backend.start(http, _nothing)
            pid = server.process.pid if server is not None and server.process is not None else None
            yield backend, psutil.Process(pid) if pid is not None else psutil.Process(), Bytes(*folders), steps
            await backend.stop()
    finally:
        if server is not None:
            await server.stop()


async def _nothing() -> None:
    pass


async def measured(way: str, gguf: Path, weights: Path, adapters: list[Path]) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="versions-", dir=gguf.parent))
    try:
        async with served(way, folder, gguf, weights) as (backend, server, room, steps):
            at_first = room.now
            looking = asyncio.create_task(room.look())
            spent, began = Processors(server), time.perf_counter()
            await backend.load(f"{MODEL}@v1", adapters[0])
            took = round(time.perf_counter() - began, 2)
            processors = spent.since()
            looking.cancel()
            first = {"steps_s": steps.took.copy(), "all_s": took, "processor_s": processors}
            after_first = room.now
            await backend.load(f"{MODEL}@v2", adapters[1])
            return {
                **first,
                "most_bytes": room.most - at_first,
                "bytes_of_one": after_first - at_first,
                "bytes_of_two": room.now - at_first,
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description="What a version of a large model costs at Ollama.")
    parser.add_argument("--sizes", nargs="+", choices=list(large_llama.SHAPES), default=["1B", "3B"])
    parser.add_argument("--kind", choices=list(large_llama.TYPES), default="Q4_0")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    for size in arguments.sizes:
        folder = Path(tempfile.mkdtemp(prefix="large-", dir=arguments.work))
        try:
            shape, gguf = large_llama.SHAPES[size], folder / f"{size}.gguf"
            parameters = large_llama.write(gguf, shape, arguments.kind, base_gguf())
            large_llama.as_weights(folder / "weights", shape, vocabulary=49152)
            adapters = [folder / f"v000{n}" for n in (1, 2)]
            for n, adapter in enumerate(adapters):
                large_llama.adapter(adapter, shape, n)
            for way in arguments.ways:
                about = circumstances() | {"parameters": parameters, "model_bytes": gguf.stat().st_size}
                figures = await measured(way, gguf, folder / "weights", adapters)
                print(size, arguments.kind, way, json.dumps(figures), flush=True)
                _keep(f"{size} {arguments.kind}", way, about | figures)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _keep(model: str, way: str, figures: dict[str, Any]) -> None:
    all: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    all.setdefault(model, {})[way] = figures
    OUT.write_text(json.dumps(all, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
