"""A real `rlproxy serve` in a process of its own, as a person starts it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from proxy.core.address_file import ADDRESS_FILE

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0  # of a machine with much else to do


class Serving:
    def __init__(self, home: Path, weights: Path, *flags: str, **env: str) -> None:
        self.home = home
        self._command = [sys.executable, "-m", "proxy.cli", "serve", "--home", str(home), "--port", "0"]
        self._command += ["--weights", str(weights), "--model", "small", *flags]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RLPROXY_")}
        self._env = {**clean, "RLPROXY_TRAIN__MIN_FREE_MEMORY_GB": "0", "RLPROXY_TRAIN__NICE": "0", **env}
        self.process: asyncio.subprocess.Process
        self.http: aiohttp.ClientSession
        self.url = ""
        self._log = home.parent / f"{home.name}.log"

    async def start(self) -> None:
        (self.home / ADDRESS_FILE).unlink(missing_ok=True)
        self._is_stopping = False
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=self._env, stdout=log, stderr=log
            )
        async with asyncio.timeout(START_S):
            while not (self.home / ADDRESS_FILE).exists():
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.05)
        self.url = json.loads((self.home / ADDRESS_FILE).read_text())["url"]
        self.http = aiohttp.ClientSession(base_url=self.url)

    @property
    def log(self) -> str:
        return self._log.read_text()[-4000:]

    def tell_to_stop(self) -> None:
        self._is_stopping = True
        self.process.terminate()

    async def stop(self) -> int:
        """Told once: a second signal would mean at once."""
        await self.http.close()
        if not self._is_stopping and self.process.returncode is None:
            self.tell_to_stop()
        return await self.process.wait()

    async def kill(self) -> None:
        """Kill it as a power button does: none of its processes gets a last word. Children must end by themselves."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        await self.process.wait()
        await self.http.close()
        # A child that is still importing torch looks at its stdin only afterwards: 15 s on a busy machine.
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 60)
        assert not alive, f"orphans outlived the proxy: {alive}"

    def trainer(self) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if "trainer" in child.cmdline():
                    return child
            except psutil.Error:
                continue
        return None

    async def chat(self, *texts: str, **fields: Any) -> tuple[dict[str, Any], str]:
        """The answer, and which adapter gave it."""
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        body = {"model": "small", "messages": messages, "max_tokens": 16, "temperature": 0.8, **fields}
        async with self.http.post("/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return answer, response.headers.get("x-rl-adapter", "")

    async def rate(self, completion_id: str, rating: str) -> str:
        body = {"completion_id": completion_id, "rating": rating}
        async with self.http.post("/v1/feedback", json=body) as response:
            answer = await response.json()
            assert response.status == 201, answer
            return str(answer["id"])

    async def status(self) -> dict[str, Any]:
        async with self.http.get("/rl/status") as response:
            return dict(await response.json())

    async def post(self, path: str) -> dict[str, Any]:
        async with self.http.post(path) as response:
            return dict(await response.json())
