"""mlx-lm's server (`mlx_lm.server`) that somebody else started: each request names the adapter it wants.

Owns how a version is named there: a folder in mlx-lm's own layout, one for each version. A folder that is overwritten
in place is not read again. Nothing is loaded ahead: the server reads an adapter with the first request that names it,
when the running ones have ended. Not here: the conversion (trainer.formats.mlx_layout).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from config.settings import Settings
from proxy.backends.base import Address, Capabilities, Conversation
from proxy.backends.model_files import is_hub_id
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.sampling_defaults import Defaults
from proxy.core.errors import BackendBroke, BackendDown, BadRequest, Unsupported
from proxy.core.json_edit import dumps
from trainer.launch import Launcher, LaunchError, verify_adapter

WHATEVER: Final = "default_model"  # the server's name for what it was started with; it ignores `adapters` then


class MLX(OpenAICompatible):
    kind = "mlx"
    capabilities = Capabilities(
        adapters=True,
        server_format="mlx",
        token_ids=False,  # of the reply only, and in whole answers only
        logprobs=False,  # before temperature and top-p, and none in streams
        whole_capture_members={"chat": {"logprobs": b"true"}},
        leaves_out=frozenset({"logprobs"}),
        logprobs_of="model",
        dialects=frozenset({"chat", "completions"}),
        single_version=True,
        slots=32,  # --decode-concurrency
        limitation=(
            "mlx_lm.server sends ids and log-probs of before sampling with whole answers, and neither in streams."
        ),
    )

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings.backend, weights=settings.train.weights)
        if self._model == WHATEVER:
            raise BadRequest(
                f"mlx_lm.server ignores adapters where the model is `{WHATEVER}`; set backend.model to what it was "
                "started with (--model)."
            )
        self._defaults = Defaults({"temperature": 0.0, "top_p": 1.0}, "assumed: it does not tell its --temp")
        self._launcher = launcher
        self._folders = Path(os.path.abspath(settings.home / "mlx"))
        self._version_folders: dict[str, str] = {}  # the versions, and the folder of each
        self._is_here = False  # the model that the server named

    @property
    def weights(self) -> str | None:
        """The server's model is a path or a hub id. What only the server has named trains where it is a model here."""
        return self._model if self._settings.model or self._is_here else None

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        """Names no adapter, too, where none is wanted: a client cannot choose a folder of its own."""
        folder = self._version_folders.get(model)
        name = model if folder is None else self._model
        return Address(self.url, {"model": dumps(name), "adapters": dumps(folder)})

    async def _name_model(self) -> None:
        """Its list is of all models that it finds on the disk, so only a single one is surely the one that it runs."""
        names = [m["id"] for m in await self.models()]
        if len(names) != 1:
            raise BackendDown(
                f"The mlx_lm.server at {self._url} does not say which model it runs ({len(names)} are on its disk); "
                "set backend.model to what it was started with (--model)."
            )
        self._is_here = is_hub_id(names[0]) or await asyncio.to_thread(self._model_folders.holds, names[0])
        self._model = names[0]

    async def models(self) -> list[dict[str, Any]]:
        """With the one that it was started with, which its list of the disk may lack.

        Where the hub's cache was never used it answers with nothing at all.
        """
        try:
            models = await super().models()
        except BackendBroke:
            status, _ = await self._call("GET", "/health")
            if status != 200:
                raise
            models = []
        if self._model and self._model not in {m["id"] for m in models}:
            models.append({"id": self._model, "object": "model", "created": 0})
        return models

    async def load(self, name: str, path: Path) -> None:
        """Converted, once. The server reads it when the swap's warm-up names it."""
        manifest = await asyncio.to_thread(verify_adapter, path)
        digest = str(manifest["files"].get("adapter_model.safetensors", ""))[:12]
        if not digest:
            raise Unsupported(f"{path} holds no adapter_model.safetensors, and mlx-lm is given nothing else.")
        out = self._folders / f"{path.name}-{digest}"
        if not await asyncio.to_thread(out.exists):
            try:
                await self._launcher.mlx(path, out)
            except LaunchError as error:
                raise BackendBroke(str(error)) from error
        self._version_folders[name] = str(out)

    async def unload(self, name: str) -> None:
        self._version_folders.pop(name, None)  # the server holds one adapter at a time, and drops it for the next


make = MLX
