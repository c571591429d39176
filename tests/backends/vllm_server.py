"""A real vLLM on the CPU, as a person would start it: one process group, so that a kill leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from proxy.backends.installed_versions import mark_of
from trainer.formats.weights import cache_folder

VENV: Final = cache_folder() / "venvs" / "vllm"  # made by scripts/setup_vllm
READY_S: Final = 600.0  # half a minute on a machine with nothing else to do
OPTIONS: Final = (
    "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager",
    # So many that the last place stays empty: what is in it answers for the base, too, in a batch with an adapter.
    "--enable-lora", "--max-lora-rank", "16", "--max-loras", "16", "--logprobs-mode", "processed_logprobs",
)  # fmt: skip


def named(home: Path, *versions: str) -> set[str]:
    """Name the models that a server lists: the base, and these versions as this home names them there."""
    return {"fake", *(f"fake@{version}-{mark_of(home)}" for version in versions)}


class VLLMServer:
    def __init__(self, weights: Path, log: Path, *more: str) -> None:
        """`more`: options, which go before those that all have."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._weights, self._log, self._more = weights, log, more
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = [VENV / "bin" / "vllm", "serve", self._weights, "--served-model-name", "fake"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *OPTIONS, *self._more]
        env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "PYTHON"))}  # it binds its own threads
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, command)), env=mine | env | {"HF_HUB_OFFLINE": "1"}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + READY_S
        while not self._healthy():
            assert self._process.poll() is None and time.monotonic() < end, self._log.read_text()[-3000:]
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def models(self) -> set[str]:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=30) as response:
            found: dict[str, Any] = json.load(response)
        return {model["id"] for model in found["data"]}

    def forget_adapters(self) -> None:
        for name in self.models() - {"fake"}:
            body = json.dumps({"lora_name": name}).encode()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{self.url}/v1/unload_lora_adapter", body, headers)
            urllib.request.urlopen(request, timeout=30).close()

    def kill(self) -> None:
        """As a power cut: no process of it gets a last word."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
