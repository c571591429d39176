"""Start the targets that scripts/bench/relay measures: one process tree each, on loopback.

Owns commands, settings files and addresses. The others are installed by scripts/setup_peers and run as their own pages
say, with logging, telemetry and retries off. Not here: what is asked of them (load), what is made of it
(measure).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil

ROOT = Path(__file__).resolve().parents[3]
START_S = 90.0
STOP_S = 20.0


class Failed(Exception):
    """It does not run here; says why."""


@dataclass
class Target:
    """One that is running."""

    name: str
    url: str
    process: psutil.Process
    version: str
    path: str = "/v1/chat/completions"
    model: str = "m"
    headers: dict[str, str] = field(default_factory=dict)
    home: Path | None = None  # of an rlproxy

    @property
    def order(self) -> dict[str, object]:
        """Where and how a client asks it."""
        address = urlsplit(self.url)
        headers = {"authorization": "Bearer bench", **self.headers}
        return {
            "host": address.hostname,
            "port": address.port,
            "path": self.path,
            "model": self.model,
            "headers": headers,
        }

    def cpu_s(self) -> float:
        """CPU seconds of all processes of the target since they began."""
        return sum(sum(p.cpu_times()[:2]) for p in self._processes())

    def rss_mb(self) -> float:
        return sum(p.memory_info().rss for p in self._processes()) / 1e6

    def _processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


def started(command: list[str], folder: Path, name: str, **env: str) -> psutil.Popen:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROXY_", "OPENAI_", "LITELLM_"))}
    with (folder / f"{name}.log").open("w") as log:
        return psutil.Popen(
            command, cwd=folder, env={**clean, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def says_its_address(process: psutil.Popen, folder: Path, name: str) -> str:
    log = folder / f"{name}.log"
    wait_for(process, lambda: _address_in(log) is not None)
    return str(_address_in(log))


def _address_in(log: Path) -> str | None:
    lines = log.read_text(errors="replace").split("\n")[:-1]
    return next((line.strip() for line in lines if line.startswith("http")), None)


def peer(name: str) -> Path:
    process = subprocess.run([ROOT / "scripts/setup_peers", name], capture_output=True, text=True, check=False)
    if process.returncode:
        raise Failed(f"scripts/setup_peers {name}: {_last_line(process.stderr)}")
    return Path(process.stdout.strip())


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def upstream(folder: Path) -> str:
    process = started([sys.executable, str(ROOT / "scripts/bench/relay/upstream.py")], folder, "upstream")
    return says_its_address(process, folder, "upstream")


def bare(folder: Path, url: str) -> Target:
    process = started([sys.executable, str(ROOT / "scripts/bench/relay/bare.py"), url], folder, "bare")
    address = says_its_address(process, folder, "bare")
    return Target("bare", address, process, f"aiohttp {aiohttp.__version__}")


def rlproxy(
    folder: Path,
    url: str,
    name: str = "rlproxy",
    kind: str = "openai",
    tree: Path = ROOT,
    command: Sequence[str] = ("proxy.cli",),
    otlp: str = "",
) -> Target:
    """rlproxy with every default, as a person starts it. `kind` vllm asks for token ids and log-probs.

    `command` is the module that serves, with its own arguments. `otlp`: the collector that it sends traces to."""
    home = folder / f"{name}-home"
    command = [sys.executable, "-m", *command, "serve", "--home", str(home), "--port", "0", "--backend", kind]
    process = started(
        [*command, "--backend-url", url, "--model", "m", "--log-level", "warning"], folder, name,
        PYTHONPATH=os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]),
        RLPROXY_SERVER__MAX_REQUESTS="2048", **({"RLPROXY_TELEMETRY__OTLP": otlp} if otlp else {}),
    )  # fmt: skip
    address = home / "serving.json"
    wait_for(process, address.exists)
    own_url = json.loads(address.read_text())["url"]
    return Target(name, own_url, process, "this commit", home=home)


def rlproxy_exact(folder: Path, url: str) -> Target:
    return rlproxy(folder, url, "rlproxy-exact", "vllm")


def tensorzero(folder: Path, url: str) -> Target:
    (folder / "tz.toml").write_text(
        f"""[gateway]
observability.enabled = false
disable_pseudonymous_usage_analytics = true
[models.m]
routing = ["up"]
[models.m.providers.up]
type = "openai"
api_base = "{url}/v1"
model_name = "m"
api_key_location = "none"
"""
    )
    code = (
        "import signal; from tensorzero import _start_http_gateway as start\n"
        "g = start(config_file='tz.toml', clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False)\n"
        "print(g.base_url, flush=True); signal.pause()"
    )
    process = started([str(peer("tensorzero") / "bin/python"), "-c", code], folder, "tensorzero")
    address = urlsplit(says_its_address(process, folder, "tensorzero"))
    target = Target("tensorzero", f"{address.scheme}://{address.netloc}", process, "tensorzero 2026.6.0")
    target.path, target.model = "/openai/v1/chat/completions", "tensorzero::model_name::m"
    return target


def portkey(folder: Path, url: str) -> Target:
    server = peer("portkey") / "node_modules/@portkey-ai/gateway/build/start-server.js"
    port = free_port()
    process = started(["node", str(server), f"--port={port}", "--headless"], folder, "portkey")
    target = Target("portkey", f"http://127.0.0.1:{port}", process, "@portkey-ai/gateway 1.15.2")
    target.headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{url}/v1"}
    wait_for(process, lambda: _listens(port))
    return target


def litellm(folder: Path, url: str) -> Target:
    (folder / "litellm.yaml").write_text(
        f"""model_list:
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "{url}/v1", api_key: x}}
litellm_settings: {{callbacks: [], num_retries: 0}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""
    )
    port = free_port()
    command = [str(peer("litellm") / "bin/litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1"]
    process = started(
        [*command, "--port", str(port), "--num_workers", "1", "--telemetry", "False"], folder, "litellm",
        LITELLM_OFFLINE_MODE="true", LITELLM_LOCAL_MODEL_COST_MAP="True",
    )  # fmt: skip
    target = Target("litellm", f"http://127.0.0.1:{port}", process, "litellm 1.106.2")
    wait_for(process, lambda: _listens(port))
    return target


STARTS = {
    "bare": bare, "rlproxy": rlproxy, "rlproxy-exact": rlproxy_exact, "tensorzero": tensorzero, "portkey": portkey,
    "litellm": litellm,
}  # fmt: skip


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """An earlier tree, beside this one."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


@contextmanager
def running(name: str, folder: Path, url: str) -> Iterator[Target]:
    """Raises Failed, with the last line of its log."""
    pids = {p.pid for p in psutil.Process().children()}
    try:
        try:
            target = STARTS[name](folder, url)
        except Failed as error:
            log = folder / f"{name}.log"
            ending = _last_line(log.read_text(errors="replace")) if log.exists() else "nothing"
            raise Failed(f"{error}; its log ends: {ending[:300]}") from None
        yield target
    finally:
        for child in psutil.Process().children():
            if child.pid not in pids:
                stop(child)


def stop(process: psutil.Process) -> None:
    """A tree that we started, by its pids."""
    if not process.is_running():
        return
    tree = [process, *process.children(recursive=True)]
    process.terminate()
    _, alive = psutil.wait_procs(tree, STOP_S)
    for child in alive:
        child.kill()
    psutil.wait_procs(alive, STOP_S)


def wait_for(process: psutil.Popen, until: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S
    while not until():
        if process.poll() is not None:
            raise Failed(f"it ended with code {process.returncode}")
        if time.monotonic() > end:
            raise Failed(f"it was not there after {START_S:g} s")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
