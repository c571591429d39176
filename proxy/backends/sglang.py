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
from config.settings import Settings
from proxy.backends.base import Address, Capabilities, Conversation
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.sampling_defaults import NEUTRAL, Defaults, file_defaults
from proxy.core.errors import BackendBroke, Unsupported
from proxy.core.json_edit import dumps, loads
from proxy.core.upstream import message_in
from trainer.launch import Launcher

START = "--enable-lora --max-lora-rank 16 --lora-target-modules all --sampling-defaults openai"
INFO: Final = ("/server_info", "/get_server_info")  # newer, older


class SGLang(OpenAICompatible):
    kind = "sglang"
    capabilities = Capabilities(
        adapters=True,
        server_format="sglang",
        token_ids=False,  # in chat they come in whole answers only; a stream that asks for them is refused
        logprobs=False,  # after temperature, before top-p, top-k and min-p
        capture_members={"chat": {"logprobs": b"true"}},
        whole_capture_members={"chat": {"return_token_ids": b"true"}},
        leaves_out=frozenset({"prompt_token_ids", "response_token_ids"}),
        logprobs_of="temperature",
        dialects=frozenset({"chat", "completions"}),  # where a colon in `model` is known to be read
        slots=256,  # as many as there is memory for
        unknown_model_statuses=frozenset({400, 404}),  # 400: no such adapter
        limitation="SGLang's log-probs are of before top-p; its chat streams have the bytes of tokens instead of ids.",
    )

    def __init__(self, settings: BackendSection, weights: str = "", home: Path | None = None) -> None:
        super().__init__(settings, home, weights)
        self._trained = weights
        self._adapters: dict[str, Path] = {}  # what it was given by us, by name

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        version = model.startswith(f"{self._model}@")
        return Address(self.url, {"model": dumps(f"{self._model}:{self.server_name(model)}" if version else model)})

    async def _samples_by(self) -> Defaults | None:
        """It tells whether it takes the model's own defaults, and which folder it has them from."""
        args = await self._server_args()
        choice = args.get("sampling_defaults")
        if choice == "openai":
            return Defaults(NEUTRAL, "as --sampling-defaults openai says")
        for spec, folders in ((args.get("model_path"), self._model_folders), (self._trained, None)):
            if not isinstance(spec, str) or not spec:
                continue
            if (filed := await asyncio.to_thread(file_defaults, spec, folders)) is not None:
                note = "which it says it takes" if choice else "assumed: it does not say whether it takes it"
                return Defaults({**NEUTRAL, **filed[1]}, f"{filed[0]}, {note}")
        return Defaults(NEUTRAL, "assumed: the model's generation_config.json is not on this machine")

    async def _server_args(self) -> dict[str, Any]:
        for path in INFO:
            status, answer = await self._call("GET", path)
            if status == 200:
                try:
                    arguments = loads(answer)
                except ValueError:
                    continue
                return arguments if isinstance(arguments, dict) else {}
        return {}

    async def lacks_room(self, lines: int) -> str | None:
        places = (await self._server_args()).get("max_loaded_loras")
        needed = 2 * lines + 1
        if not isinstance(places, int) or places >= needed:
            return None
        return (
            f"SGLang at {self.url} keeps {places} adapters, and {lines} lines need {needed}: each its live and its "
            f"previous version, and one on its way. Start it with --max-loaded-loras {needed}."
        )

    async def load(self, name: str, path: Path) -> None:
        if self.server_name(name) in {m["id"] for m in await self.models()}:
            if self._adapters.get(name) == path:
                return
            await self.unload(name)  # an earlier rlproxy's of this home
        success, message = await self._change("load", lora_name=self.server_name(name), lora_path=str(path))
        if success:
            self._adapters[name] = path
            return
        if "not enabled" in message:
            raise Unsupported(f"SGLang takes no adapter ({message.rstrip('.')}); start it with {START}.")
        raise BackendBroke(f"The backend refused the adapter {name}: {message}")

    async def unload(self, name: str) -> None:
        """SGLang itself waits for what still runs on it."""
        success, message = await self._change("unload", lora_name=self.server_name(name))
        if not success and "does not exist" not in message:
            raise BackendBroke(f"The backend did not unload {name}: {message}")

    async def _change(self, verb: str, **body: str) -> tuple[bool, str]:
        """Tell whether it did, and what it said where not."""
        status, answer = await self._call("POST", f"/{verb}_lora_adapter", json=body)
        try:
            reply: dict[str, Any] = loads(answer)
            return reply["success"] is True, str(reply.get("error_message") or f"it answered {status}")
        except (ValueError, KeyError, TypeError):
            return False, f"{status}: {message_in(answer)}"  # what is no answer of this route, as a missing key


def make(settings: Settings, _: Launcher) -> SGLang:
    return SGLang(settings.backend, settings.train.weights, settings.home)
