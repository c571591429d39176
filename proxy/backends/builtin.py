"""The built-in backend: `trainer.serve` as a child process, kept alive, spoken to as vLLM.

Owns the process: start, restart with a growing pause, stop. The routes are vLLM's.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import structlog

from config.settings import Settings
from proxy.backends.base import ServedModel
from proxy.backends.vllm import VLLM
from proxy.backends.weights_files import fingerprint
from proxy.core.errors import BackendDown, Unsupported
from trainer.launch import BuiltinServer, Launcher, LaunchError

log = structlog.get_logger()

LOG_EVERY_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class Builtin(VLLM):
    kind = "builtin"
    # 16 rows: trainer.serve.engine.
    capabilities = replace(
        VLLM.capabilities, server_format="peft", dialects=frozenset({"chat"}), can_free=True, slots=16
    )

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings.backend)
        self._all = settings
        self._launcher = launcher
        self._server: BuiltinServer | None = None
        self._key = secrets.token_urlsafe(32)  # else every user of this machine could ask it, and load adapters
        self._weights: str | None = None
        self._loaded: str | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._down_reason = "its process starts"
        self._logged_phase, self._logged_s = "", 0.0
        self._on_restart: Callable[[], Awaitable[None]] | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise BackendDown(f"The built-in backend is not up: {self._down_reason}.", retry_after=5)
        return self._server.url

    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    @property
    def served(self) -> ServedModel:
        return ServedModel(self._model, {"temperature": 1.0, "top_p": 1.0})

    @property
    def weights(self) -> str | None:
        return self._weights  # known while it rests, too: a run needs them then

    @property
    def weights_fingerprint(self) -> str | None:
        return self._loaded

    @property
    def state(self) -> str:
        if self._up.is_set() and self._server:
            return f"builtin at {self._server.url}, process {self._server.pid}"
        return f"builtin, {'down' if self._loaded else 'starting'}: {self._down_reason}"

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        """Raises Unsupported where the `train` extra is missing, BackendDown where the first start fails."""
        self._http, self._on_restart = http, on_restart
        if (obstacle := self._launcher.available(serves=True)) is not None:
            raise Unsupported(obstacle)
        try:
            await self._launch()
        except LaunchError as error:
            raise BackendDown(f"The built-in backend did not start: {error}") from error
        self._answers()

    def _answers(self) -> None:
        self._up.set()
        self._keeper = asyncio.create_task(self._keep(), name="keep-backend")

    async def _launch(self) -> None:
        settings = self._all
        logs = settings.home / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.info("backend starts", log=str(logs))
        weights = settings.train.weights
        files = await asyncio.to_thread(fingerprint, weights) if weights else None  # before they are read
        self._server = await self._launcher.start_server(
            weights,
            self._model,
            threads=settings.backend.threads,
            key=self._key,
            trust_remote_code=weights in settings.train.trust_remote_code,
            images=settings.images,
            log=logs / "backend.log",
            tell=self._note_progress,
        )
        self._model, self._weights = self._server.model, self._server.weights
        self._loaded = files or await asyncio.to_thread(fingerprint, self._weights)
        log.info("backend up", url=self._server.url, model=self._server.model, weights=self._server.reason)

    def _note_progress(self, line: str) -> None:
        """For `state`, and now and then for the log."""
        self._down_reason = line
        if line.partition(",")[0] != self._logged_phase or time.monotonic() - self._logged_s > LOG_EVERY_S:
            self._logged_phase, self._logged_s = line.partition(",")[0], time.monotonic()
            log.info(line)

    async def _keep(self) -> None:
        """Restart the process whenever it ends; give its adapters back before anyone is let in."""
        pause = FIRST_PAUSE_S
        while True:
            assert self._server is not None
            status = await self._server.wait()
            self._up.clear()
            self._server, self._down_reason = (
                None,
                f"its process ended with status {status} and is being restarted",
            )
            log.error("backend died", status=status, restart_in_s=pause)
            while self._server is None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                try:
                    await self._launch()
                    assert self._on_restart is not None
                    await self._on_restart()
                    self._up.set()
                except Exception as error:
                    self._down_reason = f"it did not come back ({error})"
                    log.error("backend restart failed", error=str(error), again_in_s=pause)
                    if self._server is not None:
                        await self._server.stop()
                        self._server = None
            pause = FIRST_PAUSE_S

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None
        if self._server is not None:
            await self._server.stop()
            self._server = None
        self._up.clear()

    async def check(self, rank: int, folder: Path) -> str | None:
        return None  # it takes every rank

    async def lacks_room(self, lines: int) -> str | None:
        return None  # it takes as many as there is memory for

    async def free(self) -> None:
        """By ending the process: on a machine without a GPU it is main memory that the run needs."""
        self._down_reason = "it rests while a run trains"
        await self.stop()

    async def reclaim(self) -> None:
        if self._keeper is not None:  # it runs, or is being restarted
            return
        try:
            await self._launch()
        except LaunchError as error:
            self._down_reason = f"it did not come back ({error})"
            raise BackendDown(f"The built-in backend did not come back: {error}", retry_after=5) from error
        self._answers()

    async def ready(self) -> None:
        try:
            async with asyncio.timeout(self._settings.ready_timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise BackendDown(f"The built-in backend is not up: {self._down_reason}.", retry_after=5) from None


make = Builtin
