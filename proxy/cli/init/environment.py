"""This machine's other contents: the agents that `rlproxy connect` knows, the accelerator, memory and room.

Owns how each is found. Nothing is changed, and what cannot be found out is left out.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from proxy.cli.agents import connection
from proxy.cli.agents.catalog import AGENTS, AgentLink, Home
from proxy.cli.agents.paths import UnreadableSettings
from trainer.launch import machine_memory

GB: Final = 2**30
SMI_S: Final = 10.0
PROGRAMS: Final[Mapping[str, str]] = {
    "claude-code": "claude", "codex": "codex", "opencode": "opencode", "openclaw": "openclaw", "aider": "aider",
    "continue": "cn", "hermes": "hermes", "cursor": "cursor", "open-webui": "open-webui", "llm": "llm",
}  # fmt: skip


class InstalledAgent(NamedTuple):
    name: str
    place: str  # how it was found
    connected: bool  # from this home, already


class ThisMachine(NamedTuple):
    accelerator: str | None  # in words
    kind: str  # cuda, metal or cpu
    accelerator_gb: float | None
    memory_gb: float
    free_gb: float  # of memory
    disk_gb: float  # free where rlproxy keeps its things

    @property
    def line(self) -> str:
        room = f", {self.accelerator_gb:.0f} GB" if self.accelerator_gb else ""
        accelerator = f"{self.accelerator}{room}" if self.accelerator else "no accelerator"
        return (
            f"{accelerator}; {self.free_gb:.0f} of {self.memory_gb:.0f} GB memory free, {self.disk_gb:.0f} GB of disk"
        )


def agents(home: Path) -> list[InstalledAgent]:
    """Those that have a program on the PATH, or settings in this person's folder."""
    person = Home(Path.home(), os.environ)
    installed = []
    for name in AGENTS:
        place = shutil.which(PROGRAMS[name]) or _settings(name, person)
        if place:
            installed.append(InstalledAgent(name, place, _is_connected(home, name)))
    return installed


def _settings(name: str, person: Home) -> str | None:
    try:
        edits = AGENTS[name](AgentLink("", "", None), person).edits
    except UnreadableSettings:
        return None
    for edit in edits:
        if edit.file.exists():
            return str(edit.file)
        if edit.file.parent != person.folder and edit.file.parent.is_dir():
            return str(edit.file.parent)
    return None


def _is_connected(home: Path, name: str) -> bool:
    try:
        return connection.load(home, name) is not None
    except UnreadableSettings:
        return True


def machine(home: Path) -> ThisMachine:
    memory = machine_memory()
    folder = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(folder).free / GB
    name, kind, room = _accelerator(memory.total / GB)
    return ThisMachine(name, kind, room, memory.total / GB, memory.free / GB, free)


def _accelerator(memory_gb: float) -> tuple[str | None, str, float | None]:
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "Apple silicon", "metal", memory_gb
    if (smi := shutil.which("nvidia-smi")) is None:
        return None, "cpu", None
    command = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=True)
        return gpus(completed.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, "cpu", None


def gpus(printed: str) -> tuple[str | None, str, float | None]:
    """From what nvidia-smi prints: the first GPU, and how many there are. Raises ValueError."""
    rows = [line.rpartition(",") for line in printed.strip().splitlines() if line.strip()]
    if not rows:
        return None, "cpu", None
    name, _, room = rows[0]
    count_note = f" × {len(rows)}" if len(rows) > 1 else ""
    return f"{name.strip()}{count_note}", "cuda", float(room) / 1024
