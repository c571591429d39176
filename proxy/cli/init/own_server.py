"""Ollama's own llama-server, run by rlproxy on Ollama's own model file: for models of which a version would be large.

Owns when that is offered, and the words. Ollamas since 0.34.1 take whole models only, and run a llama-server that takes
the adapter as a file. Not here: who is asked (questions), that server once it runs (backends.llamacpp_managed).
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from proxy.backends import gguf_files
from proxy.backends.ollama import COPIES, format_of, release_of
from proxy.cli.init.discovery import DiscoveredServer
from proxy.cli.init.environment import ThisMachine

LARGE: Final = (
    10**9
)  # bytes of the model's file; below that a version costs half a processor minute (docs/lab/ollama.md)
MINUTES_PER_GB: Final = 0.6  # of one processor, measured for a fused file: to make it, send it and take it in
CONTEXT: Final = 4096  # Ollama's own, where its Modelfile says nothing
GB: Final = 1e9


class Offer(NamedTuple):
    command: str  # backend.command
    reason: str
    lost: str

    @property
    def note(self) -> str:
        """For whom nobody asks."""
        return f"{self.reason} To take it: own_server = true in --answers. {self.lost}"


def offer(
    server: DiscoveredServer, model: str, file: Path | None, context: int | None, machine: ThisMachine
) -> Offer | None:
    """None where Ollama is the better way, or where it cannot be done. `file` is the model's own at Ollama."""
    if server.kind != "ollama" or file is None or not takes_whole_models(server.version):
        return None
    if machine.kind == "cuda":  # it finds a GPU of NVIDIA only as Ollama starts it; that was not tried
        return None
    program = next((candidate for candidate in _programs() if candidate.is_file()), None)
    if program is None or gguf_files.unreadable_reason(file) is not None or file.stat().st_size < LARGE:
        return None
    size = gguf_files.whole_size(file) / GB
    command = [str(program), "-m", str(file), "--alias", model, "-c", str(context or CONTEXT)]
    return Offer(
        shlex.join(command),
        f"This Ollama takes whole models only: a version of {model} would be one of up to {size:.1f} GB. To make it "
        f"takes {COPIES * size:.0f} GB of disk and {max(1, round(size * MINUTES_PER_GB))} minutes of a processor. "
        "Its own llama-server takes a version as a file of some MB, in seconds: rlproxy can run that one, on "
        "Ollama's file.",
        "What is lost: Ollama's loading and unloading (the model stays in memory), and its template and parameters "
        "(those of the file hold). Its updates, too: after `ollama pull` run init again.",
    )


def takes_whole_models(version: str) -> bool:
    release = release_of(version)
    return release is not None and format_of(release) == "merged"


def _programs() -> Iterator[Path]:
    """Where Ollama looks for it (its llm/llama_binary.go), from each `ollama` that is here."""
    suffix = ".exe" if sys.platform == "win32" else ""
    for ollama in _ollamas():
        folder = ollama.resolve().parent
        for directory in (folder.parent / "lib" / "ollama", folder / "lib" / "ollama", folder):
            yield directory / f"llama-server{suffix}"


def _ollamas() -> Iterator[Path]:
    if (program := shutil.which("ollama")) is not None:
        yield Path(program)
    for process in psutil.process_iter(["name", "exe"]):
        if str(process.info["name"]).startswith("ollama") and process.info["exe"]:
            yield Path(process.info["exe"])
