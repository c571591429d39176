"""The model servers that somebody has running before the quick start begins: real ones, and fakes as processes.

Owns how each is started and which port is its usual one. `python -m scripts.quickstart.servers ollama FOLDER` is a
fake one, until it is ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from scripts.bench.swap_setup import GGUF, LLAMA, MLX, OPENBLAS
from trainer.formats.weights import DEFAULT_NAME, cache_folder

ROOT: Final = Path(__file__).resolve().parents[2]
WEIGHTS: Final = cache_folder() / "models" / DEFAULT_NAME
READY_S: Final = 120.0


class Start(NamedTuple):
    port: int
    command: list[str]
    needs: tuple[Path, ...]  # made by scripts/test_backends and scripts/get_model.py
    env: dict[str, str]


def llamacpp(folder: Path) -> Start:
    """A router, as docs/reference/backends.md has it."""
    presets = folder / "presets.ini"
    presets.write_text(f"[*]\nctx-size = 4096\n\n[{DEFAULT_NAME}]\nmodel = {GGUF}\n")
    command = [str(LLAMA), "--models-preset", str(presets), "--models-max", "3", "--offline", "--port", "8080"]
    return Start(8080, command, (LLAMA, GGUF, WEIGHTS), {})


def mlx(folder: Path) -> Start:
    env = {"HF_HUB_OFFLINE": "1"} | ({"LD_PRELOAD": OPENBLAS[0]} if OPENBLAS else {})
    return Start(8080, [str(MLX), "--model", str(WEIGHTS), "--port", "8080"], (MLX, WEIGHTS), env)


def fake(kind: str, port: int) -> Callable[[Path], Start]:
    command = [sys.executable, "-m", "scripts.quickstart.servers", kind]
    return lambda folder: Start(port, [*command, str(folder / kind)], (), {})


SERVERS: Final[dict[str, Callable[[Path], Start]]] = {
    "llamacpp": llamacpp,
    "mlx": mlx,
    "ollama": fake("ollama", 11434),
    "lmstudio": fake("lmstudio", 1234),
}


def run(start: Start, log: Path) -> subprocess.Popen[bytes]:
    """Until it answers. Raises RuntimeError."""
    with log.open("wb") as out:
        process = subprocess.Popen(start.command, cwd=ROOT, env={**os.environ, **start.env}, stdout=out, stderr=out)
    began = time.monotonic()
    while time.monotonic() - began < READY_S and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{start.port}/v1/models", timeout=5).close()
            return process
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"The server did not start: {log.read_text(errors='replace')[-500:]}")


async def main(kind: str, folder: Path) -> None:
    from scripts.fakes.lmstudio import FakeLMStudio
    from scripts.fakes.ollama import FakeOllama

    if kind == "ollama":
        await FakeOllama(folder).start(11434)
    else:
        await FakeLMStudio(folder).start(1234)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
