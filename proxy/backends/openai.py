"""Any OpenAI-compatible server: relayed, captured and rated; it takes no adapter while it runs.

Owns what all servers over HTTP have in common: address, key, model list, reachability.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from config.sections import Backend as BackendSection
from proxy.backends.base import Address, Capabilities, Served
from proxy.errors import BackendBroke, BackendDown, Unsupported
from proxy.wire import dumps, loads


class OpenAICompatible:
    kind = "openai"
    capabilities = Capabilities(
        adapters=False,
        token_ids=False,
        logprobs=False,
        dialects=frozenset({"chat", "completions"}),
        tries=True,
        why_not="This kind of backend is captured and rated only: rlproxy cannot load an adapter into it.",
    )

    def __init__(self, settings: BackendSection) -> None:
        self._settings = settings
        self._url = settings.url.rstrip("/").removesuffix("/v1")
        self._model = settings.model
        self._http: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def served(self) -> Served:
        return Served(self._model, {"temperature": 1.0, "top_p": 1.0})

    @property
    def weights(self) -> str | None:
        return None

    @property
    def places(self) -> int | None:
        return None

    @property
    def state(self) -> str:
        return f"{self.kind} at {self._url}"

    def address(self, model: str) -> Address:
        return Address(self.url, {"model": dumps(model)})

    def headers(self) -> Mapping[str, str]:
        key = self._settings.api_key
        return {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}

    @property
    def lacks(self) -> str | None:
        return None

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        self._http = http
        with contextlib.suppress(BackendDown):  # it may come later; `ready` asks again
            await self._name_model()

    async def stop(self) -> None:
        return None

    async def ready(self) -> None:
        if not self._model:
            await self._name_model()

    async def _name_model(self) -> None:
        """With no model in the settings, the first one that is not an adapter of another."""
        if not self._model:
            names = [m["id"] for m in await self.models() if not m.get("parent")]
            if not names:
                raise BackendDown(f"The backend at {self._url} serves no model; load one there, or set backend.model.")
            self._model = names[0]

    async def models(self) -> list[dict[str, Any]]:
        status, body = await self._call("GET", "/v1/models")
        if status != 200:
            raise BackendBroke(f"The backend at {self._url} answered {status} to GET /v1/models; check its log.")
        try:
            return list(loads(body)["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(f"The backend at {self._url} answered GET /v1/models with no model list.") from error

    async def load(self, name: str, path: Path) -> None:
        raise Unsupported(self.capabilities.why_not)

    async def unload(self, name: str) -> None:
        raise Unsupported(self.capabilities.why_not)

    async def _call(self, method: str, path: str, *, timeout_s: float = 60, **more: Any) -> tuple[int, bytes]:
        """One control request, a short one unless told otherwise. Raises BackendDown where nobody answers."""
        if self._http is None:
            raise BackendDown("The backend has not been started.")
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._http.request(
                method, self.url + path, headers=self.headers(), timeout=timeout, **more
            ) as response:
                return response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise down(self.url, error) from error


def down(url: str, error: BaseException) -> BackendDown:
    why = str(error) or type(error).__name__
    return BackendDown(
        f"The backend at {url} does not answer ({why}); start it, or check backend.url. Nothing stored was lost.",
        retry_after=5,
    )
