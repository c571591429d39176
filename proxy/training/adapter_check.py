"""Would the backend take what a run makes? Asked before the run, so that none trains what nobody can load.

Owns when it is asked and how long an answer counts. Whether this kind of model has a place for an adapter in the
server's format is known from its files. Not here: what else is asked of a server, and how (backends).
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path
from typing import Final

import structlog

from config.settings import Settings
from proxy.backends.base import Backend
from proxy.core.errors import ProxyError
from trainer.launch import AdapterError, Launcher, LayerPlan, ServerFormat

log = structlog.get_logger()

CHECK_S: Final = 20.0  # a backend that is silent for so long is taken for one that does not answer
RETRY_S: Final = 60.0  # while it says no: somebody may have started it otherwise
UNANSWERED_S: Final = 5.0


class AdapterCheck:
    def __init__(self, settings: Settings, backend: Backend, launcher: Launcher) -> None:
        self._train = settings.train
        self._backend = backend
        self._launcher = launcher
        self._folder = Path(os.path.abspath(settings.adapters_dir))  # as the backend will be told
        self._asking = asyncio.Lock()
        self.reason: str | None = None
        self.layers: LayerPlan | None = None  # that a run would train; None where that is not known
        self._until = 0.0  # monotonic seconds
        self._subject: tuple[Path | None, ServerFormat] | None = None  # of which `reason` is

    async def check(self, weights: str, parent: Path | None) -> str | None:
        """Why it would not, as far as is known; asked where nothing is, or where it said no a while ago. `parent`: the
        adapter that a run would go on from."""
        is_fresh = time.monotonic() < self._until and self._subject == (parent, self._backend.server_format)
        if is_fresh or self._asking.locked():
            return self.reason
        return await self.check_now(weights, parent)

    async def check_now(self, weights: str, parent: Path | None) -> str | None:
        """Why it would not, asked now. One that does not answer has refused nothing new."""
        async with self._asking:
            self._subject = parent, self._backend.server_format
            try:
                async with asyncio.timeout(CHECK_S):
                    reason = await self._look(weights, parent)
            except (ProxyError, TimeoutError):
                self._until = time.monotonic() + UNANSWERED_S
                return self.reason
        if reason is not None and reason != self.reason:
            log.warning("the backend would not take an adapter", why=reason)
        self.reason, self._until = reason, math.inf if reason is None else time.monotonic() + RETRY_S
        return reason

    async def _look(self, weights: str, parent: Path | None) -> str | None:
        preset, overrides = self._train.preset, self._train.overrides
        try:
            self.layers = await self._launcher.layers(weights, self._backend.server_format, preset, overrides, parent)
        except AdapterError as error:
            self.layers = None
            return str(error)
        rank = await self._launcher.rank(weights, preset, overrides)
        return await self._backend.check(rank, self._folder)
