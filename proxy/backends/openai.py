"""Any OpenAI-compatible server that runs a model which is not ours, as a cloud API: captured and rated.

Clients ask for whatever model it has, with keys of their own. rlproxy needs neither a model's name nor a key to pass
that on, and asks for nothing by itself. Not here: what is learned from it (cloud_student).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

import aiohttp
import orjson

from config.settings import Settings
from proxy.backends.base import Address, Conversation
from proxy.backends.openai_compatible import OpenAICompatible
from trainer.launch import Launcher

WANTS_KEY = (401, 403)


class Cloud(OpenAICompatible):
    has_own_routes: ClassVar[bool] = False
    capabilities = replace(
        OpenAICompatible.capabilities,
        is_foreign=True,
        limitation=(
            "This kind of backend is captured and rated only: rlproxy cannot load an adapter into it. "
            "What is rated can train a local model (train.weights)."
        ),
    )

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        return Address(self._url, {"model": orjson.dumps(model)} if model else {})

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        self._http = http

    async def ready(self) -> None:
        return None

    async def models(self) -> list[dict[str, Any]]:
        """Empty where only clients have the key."""
        status, _ = await self._call("GET", "/v1/models")
        return [] if status in WANTS_KEY else await super().models()


def make(settings: Settings, _: Launcher) -> Cloud:
    return Cloud(settings.backend)
