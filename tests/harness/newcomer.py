"""A person's machine as a newcomer has it: an empty home, one Ollama, some agents, maybe a service manager."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.harness.terminal import ROOT

LLAMA = {
    "model_info": {
        "general.architecture": "llama", "general.basename": "Llama-3.2", "general.size_label": "3B",
        "general.finetune": "Instruct", "general.parameter_count": 3_212_749_888, "llama.block_count": 28,
    },
    "details": {"family": "llama", "parameter_size": "3.2B"},
}  # fmt: skip


class Newcomer:
    def __init__(self, folder: Path, ollama: str = "") -> None:
        self.folder = folder
        self.home = folder / "person"
        self.rlproxy = self.home / ".rlproxy"
        self.bin = folder / "bin"
        self.port = free_port()
        for made in (self.home, self.bin):
            made.mkdir(parents=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROXY_", "XDG_", "HF_", "OLLAMA", "CL"))}
        self.env = {
            **clean, "HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin", "COLUMNS": "200",
            "PYTHONPATH": str(ROOT), "RLPROXY_SERVER__PORT": str(self.port), "OLLAMA_HOST": ollama,
            "OMP_WAIT_POLICY": "PASSIVE", "HF_ENDPOINT": "http://127.0.0.1:9",
            "OLLAMA_MODELS": str(folder.parent),  # where a test's Ollama has its files
        }  # fmt: skip

    def has_agent(self, folder: str) -> None:
        (self.home / folder).mkdir()

    def has_systemd(self) -> Path:
        """The fake one; a service knows nothing of a shell's environment, so the port is in the settings."""
        runtime = self.folder / "run"
        (runtime / "systemd").mkdir(parents=True)
        self.env["XDG_RUNTIME_DIR"] = str(runtime)
        program = self.bin / "systemctl"
        program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m scripts.fakes.systemctl "$@"\n')
        program.chmod(0o755)
        journal = self.bin / "journalctl"
        journal.write_text(f'#!/bin/sh\necho "asked: $@"\ncat {runtime}/systemd/rlproxy.log\n')
        journal.chmod(0o755)
        del self.env["RLPROXY_SERVER__PORT"]
        self.rlproxy.mkdir()
        (self.rlproxy / "rlproxy.toml").write_text(f"# mine\n[server]\nport = {self.port}\n")
        return runtime / "systemd"

    async def run(self, *args: str, **env: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy.cli", *args, cwd=ROOT, env={**self.env, **env},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    def files(self) -> dict[str, bytes]:
        """All that is in the person's folder."""
        found = (p for p in sorted(self.home.rglob("*")) if p.is_file())
        return {str(p.relative_to(self.home)): p.read_bytes() for p in found}

    @property
    def settings(self) -> str:
        return (self.rlproxy / "rlproxy.toml").read_text()

    def answers(self, name: str = "answers.toml", **given: Any) -> str:
        file = self.folder / name
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        file.write_text(json.dumps(given) if name.endswith(".json") else "\n".join(lines))
        return str(file)

    async def stop_proxy(self) -> None:
        """The one that was left running in the background, if there is one."""
        try:
            pid = json.loads((self.rlproxy / "serving.json").read_text())["pid"]
            process = psutil.Process(pid)
        except (OSError, psutil.Error):
            return
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(psutil.wait_procs, [process], 30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
