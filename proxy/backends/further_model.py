"""The server of one of `[models.NAME]`: it answers under that name, and none of its answers trains.

Owns that it is asked for one model and for nothing that only a run needs: no log-probs, no token ids, no adapter. So
every kind of server is the same here. Not here: which requests go to it (relay.model_servers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import aiohttp

from config.further_models import FurtherModel
from config.sections import BackendSection
from config.settings import Settings
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.core.server_url import base_url

LIMITATION: Final = "Answers of further models are captured and rated; only the home's own model trains."


class FurtherServer(OpenAICompatible):
    def __init__(self, name: str, model: FurtherModel, backend: BackendSection) -> None:
        """`backend`: the home's own server, whose bounds in time hold here, too."""
        changes = {"url": model.address, "model": model.model, "api_key": model.api_key}
        super().__init__(backend.model_copy(update=changes))
        self.kind = model.kind
        self.section = f"models.{name}"
        address = model.address.rstrip("/").removesuffix("/api") if model.kind == "ollama" else model.address
        self._url = base_url(address, is_root=model.kind != "openai")
        self.capabilities = replace(
            OpenAICompatible.capabilities,
            is_foreign=model.kind == "openai",  # a question there may have its price, so it is not asked twice
            implied_tag=":latest" if model.kind == "ollama" else "",
            limitation=LIMITATION,
        )

    @property
    def state(self) -> str:
        return f"{self._model or 'its only model'} of {self.kind} at {self._url}"

    def open(self, http: aiohttp.ClientSession) -> None:
        """Be ready to ask it. It is not asked yet: one that is away keeps nobody from starting."""
        self._http = http


def make_further_servers(settings: Settings) -> Mapping[str, FurtherServer]:
    """By their names."""
    return {name: FurtherServer(name, model, settings.backend) for name, model in settings.models.items()}
