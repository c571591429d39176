"""An agent from npm as a person runs it, but alone: an empty home, a dummy key, and no way out but the proxy.

Owns its surroundings: `env -i`, the files that `rlproxy connect` writes, and a dead end for whatever it asks of anybody
else. `scripts/test_agents` installs the pinned versions, and runs these tests where there is no network but loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.command import rlproxy
from scripts.harness.dead_end import DeadEnd
from scripts.harness.serving import Serving

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
INSTALLED = CACHE / "rlproxy/agents/node_modules"
PINNED = Path(__file__).resolve().parents[2] / "tests/clients/package.json"
LIMIT_S = 240.0
CLAUDE_CODE_QUIET = {
    "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}  # fmt: skip
# Without the first four Codex asks its makers for statistics, updates and plugins. Its sandbox is not to be had
# everywhere.
CODEX_QUIET = (
    "-c", "analytics.enabled=false", "-c", "check_for_update_on_startup=false", "--disable", "plugins",
    "--disable", "apps", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
)  # fmt: skip


def program(package: str, binary: str) -> Path:
    """Skips the test where the pinned version is not installed."""
    version = json.loads(PINNED.read_text())["dependencies"][package]
    about = INSTALLED / package / "package.json"
    if not about.exists() or json.loads(about.read_text())["version"] != version:
        pytest.skip(f"{package} {version} is not installed; `make test-agents` does that and runs this test")
    return INSTALLED / ".bin" / binary


class Agent:
    def __init__(self, program: Path, folder: Path, serving: Serving, **env: str) -> None:
        self.dead_end = DeadEnd()
        self.serving = serving
        self.home = folder / "person"
        self.work = self.home / "work"
        self.work.mkdir(parents=True)
        self.limit_s = LIMIT_S
        self.program = program
        self._env = env

    async def connect(self, name: str, *flags: str) -> None:
        """`rlproxy connect NAME`, as its owner does it once."""
        nowhere = dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME"), "")
        code, out, err = await rlproxy(
            self.serving.home, "connect", name, "--yes", *flags, HOME=str(self.home), **nowhere
        )
        assert code == 0, out + err

    async def run(self, *args: str) -> str:
        """Run the program and return what it prints. A failure shows all that it said."""
        code, out, err = await self.tried(*args)
        assert code == 0, f"{out}\n{err}\n{self.serving.log}"
        return out

    @property
    def environment(self) -> dict[str, str]:
        """All that the program knows of the machine. It needs `dead_end` to be started."""
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.dead_end.url)
        env = {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", "NO_PROXY": "127.0.0.1", **proxies}
        return {**env, **self._env}

    async def tried(self, *args: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            str(self.program), *args, cwd=self.work, env=self.environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.limit_s):
                out, err = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):  # with what it started: npm's programs are behind a script
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return process.returncode or 0, out.decode(), err.decode()

    async def patiently(self, *args: str) -> str:
        """Likewise, of a small model, which now and then begins an answer that has no end: then once more."""
        self.limit_s = LIMIT_S / 3
        for _ in range(5):
            with contextlib.suppress(TimeoutError):
                return await self.run(*args)
        raise AssertionError(f"no answer in five times {self.limit_s:.0f} s\n{self.serving.log}")

    async def rows(self) -> list[dict[str, Any]]:
        """The captured completions, oldest first."""
        async with self.serving.http.get("/rl/completions", params={"limit": "200"}) as response:
            return list(reversed((await response.json())["data"]))


@asynccontextmanager
async def connected(agent: Agent, name: str, *, asks_home: bool = False) -> AsyncIterator[Agent]:
    """The agent, connected to its running proxy; afterwards nobody may have gone anywhere else. `asks_home`: as a
    terminal program it asks its makers all the same, and comes to a dead end."""
    await agent.dead_end.start()
    await agent.serving.start()
    try:
        await agent.connect(name)
        yield agent
        assert asks_home or agent.dead_end.requests == []
    finally:
        await agent.dead_end.stop()
        assert await agent.serving.stop() == 0


def over(backend: FakeBackend, folder: Path, model: str = MODEL) -> Serving:
    """A real `rlproxy serve` over the scripted backend, which has chat completions only: it must translate."""
    flags = ("--backend", "openai", "--backend-url", backend.url, "--model", model)
    return Serving(folder / "home", folder / "no-weights", *flags)
