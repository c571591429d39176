"""Any OpenAI-compatible server: relayed, captured and rated; it takes no adapter while it runs.

Owns what all servers over HTTP have in common: address, key, model list, reachability.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import aiohttp

from config.sections import BackendSection
from proxy.backends.ask import OWN_SECTION, contact
from proxy.backends.base import (
    Address,
    Capabilities,
    Conversation,
    LeftoverVersions,
    ModelDescription,
    Prompt,
    RenderedPrompt,
    ServedModel,
)
from proxy.backends.installed_versions import mark_of
from proxy.backends.model_files import ModelFolders
from proxy.backends.sampling_defaults import NEUTRAL, Defaults
from proxy.core.errors import BackendBroke, BackendDown, Unsupported
from proxy.core.http_message import address_of
from proxy.core.json_edit import dumps, loads
from proxy.core.server_url import base_url, route_path, route_url
from proxy.core.upstream import body_of, message_in
from trainer.launch import ServerFormat

_VERSION: Final = re.compile(r".+@v\d+")
CALL_S: Final = 60.0  # for a control request, a load among them
CALL_BYTES: Final = 1 << 23  # of an answer to one: a model list of the largest router has one million
LONG_CALL_BYTES: Final = 1 << 25  # of one that repeats a prompt, or a model's vocabulary
# How often a server is asked how it samples by default, as it may have been restarted otherwise; sooner where it did
# not say. A client's request waits for that, but never long.
LOOK_S: Final = 300.0
LOOK_AGAIN_S: Final = 10.0
LOOKS_S: Final = 10.0
# Of an entry in a model list: vLLM has the time of asking and fresh ids in it, a router who is loaded just now.
PASSING: Final = {"created", "modified_at", "permission", "status", "tags"}


class OpenAICompatible:
    kind = "openai"
    section: str = OWN_SECTION
    has_own_routes: ClassVar[bool] = True  # beside the API, so that its address may lack `/v1`
    capabilities = Capabilities(
        adapters=False,
        token_ids=False,
        logprobs=False,
        dialects=frozenset({"chat", "completions"}),
        tries_formats=True,
        limitation="This kind of backend is captured and rated only: rlproxy cannot load an adapter into it.",
    )

    def __init__(self, settings: BackendSection, home: Path | None = None, weights: str = "") -> None:
        """`home`: of a backend whose versions are known to the server by name; `weights`: as train.weights."""
        self._settings = settings
        self._model_folders = ModelFolders.of(settings, weights)
        self._marked_for = home
        self._url = base_url(settings.url, is_root=self.has_own_routes)
        self._model = settings.model
        self._http: aiohttp.ClientSession | None = None
        self._defaults = Defaults(NEUTRAL, "assumed, as OpenAI's API does")
        self._look_at = 0.0  # when to ask again how it samples

    @property
    def url(self) -> str:
        return self._url

    @property
    def served(self) -> ServedModel:
        defaults = self._defaults
        return ServedModel(
            self._model,
            defaults.sampling,
            source=defaults.source,
            unsure=defaults.unsure,
            logprobs_of=defaults.logprobs_of,
        )

    @property
    def weights(self) -> str | None:
        return None

    @property
    def weights_fingerprint(self) -> str | None:
        return None

    @property
    def server_format(self) -> ServerFormat:
        return self.capabilities.server_format

    @property
    def max_models(self) -> int | None:
        return None

    @property
    def state(self) -> str:
        return f"{self.kind} at {self._url}"

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        return Address(self.url, {"model": dumps(self.server_name(model))})

    def server_name(self, model: str) -> str:
        """The server's name for it. A version has the home's mark, since another home may have one of that number."""
        return f"{model}-{self.mark}" if self.mark and _VERSION.fullmatch(model) else model

    @cached_property
    def mark(self) -> str:
        return "" if self._marked_for is None else mark_of(self._marked_for)

    def addresses(self, model: str) -> Sequence[Address]:
        return (self.address(model),)

    def release(self, address: Address) -> None:
        return None

    def fail_over(self, address: Address) -> bool:
        return False

    def headers(self) -> Mapping[str, str]:
        key = self._settings.api_key
        return {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}

    @property
    def obstacle(self) -> str | None:
        return None

    @property
    def growth(self) -> str | None:
        return None

    @property
    def leftovers(self) -> LeftoverVersions | None:
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
        await self._look_how_it_samples()

    async def _look_how_it_samples(self) -> None:
        """One request asks; others go on with what was known."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        defaults = None
        with contextlib.suppress(TimeoutError, BackendDown, BackendBroke):
            async with asyncio.timeout(LOOKS_S):
                defaults = await self._samples_by()
        if defaults is None:
            self._look_at = time.monotonic() + LOOK_AGAIN_S
        else:
            self._defaults = defaults

    async def _samples_by(self) -> Defaults | None:
        """How it samples where a client says nothing; None where it did not say. Raises BackendDown, BackendBroke."""
        return self._defaults

    async def _name_model(self) -> None:
        """With no model in the settings, the first one that is not an adapter of another."""
        if not self._model:
            names = [m["id"] for m in await self.models() if not m.get("parent")]
            if not names:
                raise BackendDown(
                    f"The backend at {self._url} serves no model; load one there, or set {self.section}.model."
                )
            self._model = names[0]

    async def models(self) -> list[dict[str, Any]]:
        status, body = await self._call("GET", "/v1/models")
        request = f"GET {route_path(address_of(self._url).path, '/v1/models')}"
        if status in (401, 403):
            variable = f"RLPROXY_{self.section}__api_key".replace(".", "__").upper()
            raise BackendBroke(
                f"The backend at {self._url} wants a key, or another one ({status} to {request}): set "
                f"{variable}, or {self.section}.api_key in the settings."
            )
        if status == 404:
            raise BackendBroke(
                f"What answers at {self._url} is not a model server (404 to {request}): correct {self.section}.url; "
                f"`rlproxy init` finds the servers that run here.{self._may_lack_version}"
            )
        if status != 200:
            raise BackendBroke(f"The backend at {self._url} answered {status} to {request}; check its log.")
        try:
            return list(loads(body)["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(
                f"The backend at {self._url} answered {request} with no model list: correct {self.section}.url; "
                f"`rlproxy init` finds the servers that run here.{self._may_lack_version}"
            ) from error

    @property
    def _may_lack_version(self) -> str:
        """A sentence on an address whose path does not end in `/v1`."""
        path = address_of(self._url).path
        return f" A path is taken as it is: should {path} be {path}/v1?" if path and not path.endswith("/v1") else ""

    async def describe(self) -> ModelDescription:
        """Its own entry in the model list: whatever a server puts there, but for what changes by itself."""
        entry = await self._own_entry()
        lasting = {key: value for key, value in entry.items() if key not in PASSING}
        return _description(lasting, await asyncio.to_thread(_config, entry.get("root"), self._model_folders))

    async def _own_entry(self) -> dict[str, Any]:
        return next((m for m in await self.models() if m.get("id") == self._model), {"id": self._model})

    async def render(self, prompt: Prompt) -> RenderedPrompt | None:
        return None

    async def _render(self, path: str, body: Mapping[str, Any], *members: str) -> Any:
        """Ask such a route for this member; None where there is no such route. Raises BackendDown,
        BackendBroke."""
        status, answer = await self._call("POST", path, most=LONG_CALL_BYTES, json={"model": self._model, **body})
        if status in (404, 405, 501):
            return None
        try:
            value = loads(answer) if status == 200 else {}
            for member in members:
                value = value[member]
            return value
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(f"POST {path} does not render a prompt ({status}): {message_in(answer)}") from error

    async def load(self, name: str, path: Path) -> None:
        raise Unsupported(self.capabilities.limitation)

    async def read_ahead_limit(self, name: str) -> int:
        return 0

    async def unload(self, name: str) -> None:
        raise Unsupported(self.capabilities.limitation)

    async def check(self, rank: int, folder: Path) -> str | None:
        return None

    async def lacks_room(self, lines: int) -> str | None:
        return None

    async def free(self) -> None:
        raise Unsupported(
            f"The backend at {self._url} cannot give its memory back while a run trains. Unset train.share_gpu, "
            "and train on another GPU or while that server is stopped."
        )

    async def reclaim(self) -> None:
        return None  # it never gave anything back

    async def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float | None = None,
        most: int = CALL_BYTES,
        url: str | None = None,
        **options: Any,
    ) -> tuple[int, bytes]:
        """One control request, a short one unless told otherwise. Raises BackendDown where nobody answers, BackendBroke
        where the answer has more than `most` bytes."""
        if self._http is None:
            raise BackendDown("The backend has not been started.")
        seconds = timeout_s or CALL_S
        timeout = aiohttp.ClientTimeout(total=seconds)
        with contact(self.url, self.kind, f"{method} {path}", seconds, self.section):
            async with self._http.request(
                method, route_url(url or self.url, path), headers=self.headers(), timeout=timeout, **options
            ) as response:
                return response.status, await body_of(response, most)


def _description(entry: dict[str, Any], config: dict[str, Any]) -> ModelDescription:
    """From an entry of a model list (llama-server has sizes under `meta`) and a config.json, where there is one."""
    meta = entry.get("meta")
    sizes = meta if isinstance(meta, dict) else {}
    text = {**config, **(config.get("text_config") or {})}
    return ModelDescription(
        identity=dumps(entry, in_order=True).decode(),
        architecture=text.get("model_type"),
        vocabulary=sizes.get("n_vocab") or text.get("vocab_size"),
        width=sizes.get("n_embd") or text.get("hidden_size"),
        parameters=sizes.get("n_params"),
    )


def _config(root: Any, folders: ModelFolders) -> dict[str, Any]:
    """The config.json of the folder that a server on this machine says it has loaded."""
    if not isinstance(root, str) or not root:
        return {}
    try:
        config = loads(folders.read_small(Path(root) / "config.json"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
