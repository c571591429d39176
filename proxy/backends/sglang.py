"""SGLang: runtime LoRA routes, and an adapter named behind a colon: `model:adapter`.

Written after sglang 0.5.23 as it is in its wheel, not run: it needs CUDA. Needs `--enable-lora`, the rank and the
layers of the adapters to come (`--max-lora-rank`, `--lora-target-modules`), and one data-parallel replica. Each version
gets a fresh name, as with vLLM.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from config.sections import BackendSection
from proxy.backends.base import Address, Capabilities
from proxy.backends.openai import OpenAICompatible
from proxy.backends.sampling_defaults import NEUTRAL, Defaults, filed
from proxy.core.errors import BackendBroke, Unsupported
from proxy.core.json_edit import dumps, loads
from proxy.core.upstream import message_in

START = "--enable-lora --max-lora-rank 16 --lora-target-modules all --sampling-defaults openai"
INFO: Final = ("/server_info", "/get_server_info")  # newer, older


class SGLang(OpenAICompatible):
    kind = "sglang"
    capabilities = Capabilities(
        adapters=True,
        token_ids=False,  # in chat they come in whole answers only; a stream that asks for them is refused
        logprobs=False,  # after temperature, before top-p, top-k and min-p
        asks={"chat": {"logprobs": b"true"}},
        asks_whole={"chat": {"return_token_ids": b"true"}},
        leaves_out=frozenset({"prompt_token_ids", "response_token_ids"}),
        logprobs_of="temperature",
        dialects=frozenset({"chat", "completions"}),  # where a colon in `model` is known to be read
        slots=256,  # as many as there is memory for
        lost=frozenset({400, 404}),  # 400: no such adapter
        why_not="SGLang's log-probs are of before top-p; its chat streams have the bytes of tokens instead of ids.",
    )

    def __init__(self, settings: BackendSection, weights: str = "", home: Path | None = None) -> None:
        super().__init__(settings, home, weights)
        self._trained = weights
        self._given: dict[str, Path] = {}  # what it was given by us, by name

    def address(self, model: str) -> Address:
        version = model.startswith(f"{self._model}@")
        return Address(self.url, {"model": dumps(f"{self._model}:{self.named(model)}" if version else model)})

    async def _samples_by(self) -> Defaults | None:
        """It tells whether it takes the model's own defaults, and which folder it has them from."""
        args = await self._server_args()
        said = args.get("sampling_defaults")
        if said == "openai":
            return Defaults(NEUTRAL, "as --sampling-defaults openai says")
        for spec, folders in ((args.get("model_path"), self._model_folders), (self._trained, None)):
            if isinstance(spec, str) and spec and (found := await asyncio.to_thread(filed, spec, folders)) is not None:
                told = "which it says it takes" if said else "assumed: it does not say whether it takes it"
                return Defaults({**NEUTRAL, **found[1]}, f"{found[0]}, {told}")
        return Defaults(NEUTRAL, "assumed: the model's generation_config.json is not on this machine")

    async def _server_args(self) -> dict[str, Any]:
        for path in INFO:
            status, answer = await self._call("GET", path)
            if status == 200:
                try:
                    found = loads(answer)
                except ValueError:
                    continue
                return found if isinstance(found, dict) else {}
        return {}

    async def load(self, name: str, path: Path) -> None:
        if self.named(name) in {m["id"] for m in await self.models()}:
            if self._given.get(name) == path:
                return
            await self.unload(name)  # an earlier rlproxy's of this home
        success, said = await self._change("load", lora_name=self.named(name), lora_path=str(path))
        if success:
            self._given[name] = path
            return
        if "not enabled" in said:
            raise Unsupported(f"SGLang takes no adapter ({said.rstrip('.')}); start it with {START}.")
        raise BackendBroke(f"The backend refused the adapter {name}: {said}")

    async def unload(self, name: str) -> None:
        """SGLang itself waits for what still runs on it."""
        success, said = await self._change("unload", lora_name=self.named(name))
        if not success and "does not exist" not in said:
            raise BackendBroke(f"The backend did not unload {name}: {said}")

    async def _change(self, verb: str, **body: str) -> tuple[bool, str]:
        """Tell whether it did, and what it said where not."""
        status, answer = await self._call("POST", f"/{verb}_lora_adapter", json=body)
        try:
            found: dict[str, Any] = loads(answer)
            return found["success"] is True, str(found.get("error_message") or f"it answered {status}")
        except (ValueError, KeyError, TypeError):
            return False, f"{status}: {message_in(answer)}"  # what is no answer of this route, as a missing key
