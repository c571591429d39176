"""llama.cpp's server run by rlproxy: one process for the model, and one more for each version that is loaded.

Owns the choice of a process for each name, and that there is memory for one more. A process has its own prompt cache,
so no version sees what another one left. Not here: the life of one process (process), how a version is drained
(live_version).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from config.settings import Settings
from proxy.backends.base import Address, Conversation
from proxy.backends.llamacpp import LlamaCpp, LlamaRouter
from proxy.backends.process import Process
from proxy.core.errors import BackendBroke, BackendDown
from proxy.core.json_edit import dumps
from trainer.launch import Launcher, machine_memory

GB: Final = 2**30
SPARE_GB: Final = 0.5  # what is left to the machine when one more process has started


class LlamaManaged(LlamaCpp):
    capabilities = replace(LlamaRouter.capabilities, can_free=True)

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings, launcher)
        self._command = shlex.split(settings.backend.command)
        api_key = settings.backend.api_key  # where its command names one, too
        self._key = api_key.get_secret_value() if api_key else secrets.token_urlsafe(32)
        self._logs = settings.home / "logs"
        self._base: Process | None = None
        self._versions: dict[str, Process] = {}
        self._freed = False

    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    @property
    def url(self) -> str:
        if self._base is None:
            raise BackendDown("llama-server has not been started.", retry_after=5)
        return self._base.url

    @property
    def state(self) -> str:
        if self._freed:
            return f"llamacpp, `{self._command[0]}` rests while a run trains"
        running = [self._base, *self._versions.values()] if self._base else []
        down = [process.down_reason for process in running if process.down_reason]
        summary = f"llamacpp, {len(running)} processes of `{self._command[0]}`, the model's at {self.url}"
        return f"{summary}; {'; '.join(down)}" if down else summary

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        process = self._versions.get(model) or self._base
        if process is None or not process.up:
            reason = process.down_reason if process else "it has not been started"
            raise BackendDown(f"The llama-server for {model} is not up: {reason}.", retry_after=5)
        return Address(process.url, {"model": dumps(model)})

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        """Raises BackendDown where it does not start."""
        self._http = http
        self._base = self._process("backend", [])
        await self._base.start(http)
        await self._name_model()

    async def stop(self) -> None:
        running = [*self._versions.values(), *([self._base] if self._base else [])]
        await asyncio.gather(*(process.stop() for process in running))

    async def ready(self) -> None:
        """Which one is asked is not known yet: `address` says it where that one is down."""
        running = [*([self._base] if self._base else []), *self._versions.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.ready_timeout_s):
                for process in running:
                    await process.wait()
        await self._look_how_it_samples()

    async def load(self, name: str, path: Path) -> None:
        if name in self._versions:
            return
        assert self._base is not None and self._http is not None
        file = await self._gguf(path)
        await asyncio.to_thread(_enough_memory, self._base.pid, name)
        process = self._process(name.rpartition("@")[2], ["--lora", str(file), "--alias", name])
        try:
            await process.start(self._http)
        except BackendDown as error:
            raise BackendBroke(f"llama-server did not start with {name}: {error.message}") from error
        self._versions[name] = process

    async def unload(self, name: str) -> None:
        if (process := self._versions.pop(name, None)) is not None:
            await process.stop()

    read_ahead_limit = LlamaRouter.read_ahead_limit

    async def free(self) -> None:
        self._freed = True
        await self.stop()
        self._versions.clear()

    async def reclaim(self) -> None:
        if self._freed:
            assert self._base is not None and self._http is not None
            await self.stop()  # should that have been broken off
            self._versions.clear()
            await self._base.start(self._http)
            self._freed = False

    def _process(self, title: str, arguments: list[str]) -> Process:
        log_file = self._logs / f"llama-{title}.log"
        return Process([*self._command, *arguments], log_file, self.headers(), {"LLAMA_API_KEY": self._key})


def _enough_memory(like: int, name: str) -> None:
    """One more process takes what the one that runs takes; weights that both map are counted twice, to be safe."""
    try:
        needed = psutil.Process(like).memory_info().rss + sum(
            child.memory_info().rss for child in psutil.Process(like).children(recursive=True)
        )
    except psutil.Error:
        return  # it ends in this moment; then it does not serve, and the load fails by itself
    free = machine_memory().free
    if free < needed + SPARE_GB * GB:
        raise BackendBroke(
            f"A second llama-server for {name} needs about {needed / GB:.1f} GB and {free / GB:.1f} GB are free; "
            "free some memory and promote it again."
        )


make = LlamaManaged
