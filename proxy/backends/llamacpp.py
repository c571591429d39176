"""llama.cpp's server that somebody else started: as a router over presets, or plain.

Owns how a version gets into it. In router mode each version is a section of the preset file and a process of its own.
So no version ever sees what another one left in a prompt cache. A plain server takes no new file while it runs. rlproxy
says what to restart, and chooses among what it was started with request by request. Not here: the conversion
(trainer.formats.gguf), the sections (llamacpp_presets), servers that rlproxy starts itself (llamacpp_managed).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from config.settings import Settings
from proxy.backends import llamacpp_presets as presets
from proxy.backends.base import Address, Capabilities, Conversation, Prompt, RenderedPrompt
from proxy.backends.gguf_files import adapter_file
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.sampling_defaults import Defaults, props_sampling
from proxy.core.errors import BackendBroke, BackendDown, Unsupported
from proxy.core.json_edit import dumps, loads
from proxy.core.upstream import message_in
from proxy.images.parts import count_images
from trainer.launch import Launcher

POLL_S: Final = 0.2
# Its own, where nobody says otherwise at the start.
UNTOLD: Final = Defaults({"temperature": 0.8, "top_p": 0.95, "top_k": 40.0, "min_p": 0.05}, "assumed: it did not say")
LOAD_S: Final = 600.0  # a large model from a slow disk
UNLOAD_S: Final = 60.0
# Without `top_logprobs` it would send the 20 likeliest of each token, with 0 nothing.
ASKS: Final = {"chat": {"logprobs": b"true", "top_logprobs": b"1"}}
PICTURE_MARKER: Final = "<__media__>"  # of servers that do not say theirs
_VERSION: Final = re.compile(r".+@v\d+(-[0-9a-f]{6})?")  # of any home; those without a mark are older


class LlamaCpp(OpenAICompatible):
    """The common part of all three ways to run it. By itself: a plain server at `backend.url`."""

    kind = "llamacpp"
    capabilities = Capabilities(
        adapters=True,
        server_format="gguf",
        token_ids=False,
        logprobs=False,  # it has them before sampling, and not one for each token
        capture_members=ASKS,
        refuses_beside=frozenset({"tools"}),
        leaves_out=frozenset({"logprobs"}),
        logprobs_of="model",
        slots=4,  # --parallel
        dialects=frozenset({"chat", "completions"}),  # in others a request's own `lora` is not known to be read
        longer_context="a longer one is `llama-server --ctx-size N`; --context-shift lets it leave out what came first",
        limitation="llama-server sends the bytes of tokens and log-probs of before sampling, and neither with tools in "
        "a stream.",
    )

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings.backend, weights=settings.train.weights)
        self._defaults = UNTOLD
        self._weights = settings.train.weights or None
        self._launcher = launcher
        self._files = Path(os.path.abspath(settings.home / "gguf"))
        self._version_files: dict[str, str] = {}  # a plain server's versions, and the file of each
        self._server_loras: dict[str, tuple[int, float]] = {}  # its LoRA files: number, and the default scale

    @property
    def state(self) -> str:
        return f"llamacpp at {self._url}, a plain server: a new version waits until that is restarted with it"

    async def models(self) -> list[dict[str, Any]]:
        """Without our own versions: they are listed by their names anyway."""
        return [m for m in await super().models() if not _VERSION.fullmatch(str(m.get("id", "")))]

    async def render(self, prompt: Prompt) -> RenderedPrompt | None:
        """By its own template and tokeniser; the text alone has no token that begins every text."""
        text = prompt.text if prompt.dialect == "completions" else None
        text = text if text is not None else await self._render("/apply-template", prompt.chat(), "prompt")
        if text is None:
            return None
        if any(map(count_images, prompt.messages)):  # its tokenizer knows nothing of pictures
            return RenderedPrompt(str(text), None, await self._picture_marker())
        body = {"content": text, "add_special": True, "parse_special": True}
        return RenderedPrompt(str(text), await self._render("/tokenize", body, "tokens"))

    async def _picture_marker(self) -> str:
        """The text that its template has in a picture's place: newer servers draw one at each start."""
        status, body = await self._call("GET", f"/props?model={quote(self._model)}")
        try:
            marker = loads(body)["media_marker"] if status == 200 else None
        except (ValueError, KeyError, TypeError):
            marker = None
        return marker if isinstance(marker, str) and marker else PICTURE_MARKER

    async def _samples_by(self) -> Defaults | None:
        status, body = await self._call("GET", f"/props?model={quote(self._model)}")
        sampling = props_sampling(body) if status == 200 else {}
        return Defaults({**UNTOLD.sampling, **sampling}, "as its /props say") if sampling else None

    async def _gguf(self, path: Path) -> Path:
        """The adapter as a GGUF file, made once. Raises BackendBroke."""
        return await adapter_file(self._launcher, path, self._weights, self._files)

    # A plain server: what it was started with, chosen in every request

    async def ready(self) -> None:
        """Looks each time: it may have been restarted with others, and serves a number it does not know as the base."""
        await super().ready()
        await self._look()

    async def load(self, name: str, path: Path) -> None:
        file = await self._gguf(path)
        await self._look()
        if str(file) not in self._server_loras:  # a POST to that route would answer success and ignore the file
            raise Unsupported(
                f"A llama-server that runs takes no new adapter, so {name} waits: restart it with "
                f"--lora-scaled {file}:0, then `rlproxy promote {name.rpartition('@')[2]}`. Or let rlproxy run it "
                "(backend.command), or start it as a router (--models-preset FILE, and backend.presets = FILE)."
            )
        self._version_files[name] = str(file)

    async def unload(self, name: str) -> None:
        self._version_files.pop(name, None)  # the file itself stays in the server until that is restarted

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        file = self._version_files.get(model)
        if file is None and not self._server_loras:
            return super().address(model)
        if file is not None and file not in self._server_loras:
            raise BackendDown(
                f"llama-server was restarted without {model}; "
                f"restart it with --lora-scaled {file}:0, or `rlproxy rollback`."
            )
        # Ours are all named, for one left out keeps the scale that the server has for all. The cache does not know
        # which adapter a prompt was read with, so no request may use it (llama.cpp's issue 26207).
        lora = [
            {"id": number, "scale": 1.0 if path == file else 0.0 if self._files in Path(path).parents else scale}
            for path, (number, scale) in self._server_loras.items()
        ]
        members = {"model": dumps(self._model), "lora": dumps(lora), "cache_prompt": b"false"}
        return Address(self.url, members)

    async def _look(self) -> None:
        status, body = await self._call("GET", "/lora-adapters")
        try:
            entries = loads(body) if status == 200 else []
            self._server_loras = {str(entry["path"]): (int(entry["id"]), float(entry["scale"])) for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(f"The backend at {self._url} answered GET /lora-adapters with no list.") from error


class LlamaRouter(LlamaCpp):
    """A router: `llama-server --models-preset FILE`, where FILE is `backend.presets`, on this machine."""

    capabilities = Capabilities(
        adapters=True,
        server_format="gguf",
        token_ids=False,
        logprobs=False,
        capture_members=ASKS,
        refuses_beside=LlamaCpp.capabilities.refuses_beside,
        leaves_out=LlamaCpp.capabilities.leaves_out,
        logprobs_of=LlamaCpp.capabilities.logprobs_of,
        slots=LlamaCpp.capabilities.slots,
        dialects=frozenset({"chat", "completions", "responses", "messages"}),
        can_free=True,
        unknown_model_statuses=frozenset({400, 404}),  # 400: no such model
        longer_context=LlamaCpp.capabilities.longer_context,
        limitation=LlamaCpp.capabilities.limitation,
    )

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings, launcher)
        assert settings.backend.presets is not None
        self._marked_for = settings.home
        self._presets = settings.backend.presets
        self._places: int | None = None

    @property
    def max_models(self) -> int | None:
        return self._places

    @property
    def state(self) -> str:
        return f"llamacpp, a router at {self._url} over {self._presets}"

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        return Address(self.url, {"model": dumps(self.server_name(model))})

    async def _name_model(self) -> None:
        status, body = await self._call("GET", "/props")
        about = loads(body) if status == 200 else {}
        if about.get("role") != "router":
            raise Unsupported(
                f"The llama-server at {self._url} is not a router; start it with --models-preset {self._presets} and "
                "without -m, or unset backend.presets."
            )
        self._places = int(about.get("max_instances") or 0) or None
        await super()._name_model()

    async def ready(self) -> None:
        if not self._model or self._places is None:
            await self._name_model()
        await self._look_how_it_samples()

    async def load(self, name: str, path: Path) -> None:
        await self.ready()
        file, unmarked, name = await self._gguf(path), name, self.server_name(name)
        if await self._status(unmarked) is not None and await self._lora(unmarked) == str(file):
            await self._take_out(unmarked)  # written by this home before its names had a mark
        state = await self._status(name)
        if state is not None and await self._lora(name) != str(file):
            await self._take_out(name)  # an earlier rlproxy's of this home
        elif state == "loaded":
            return
        await self._write(presets.with_version, self._model, name, file)
        state = await self._status(name, reload=True)
        if state is None:
            await self._write(presets.without_section, name)
            raise BackendBroke(f"The router at {self._url} does not read {self._presets}; is it its --models-preset?")
        try:
            await self._run(name, state)
        except BackendBroke:
            await self._take_out(name)
            raise

    async def _run(self, name: str, state: str | None) -> None:
        """Have it loaded, `state` being its status now. Raises BackendBroke."""
        if state not in ("loaded", "loading"):
            status, answer = await self._call("POST", "/models/load", json={"model": name})
            if status != 200 and await self._status(name) not in ("loaded", "loading"):
                raise BackendBroke(f"The router did not load {name} ({status}): {message_in(answer)}")
        try:
            async with asyncio.timeout(LOAD_S):
                while (state := await self._status(name)) == "loading":
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            state = "still loading"
        if state != "loaded":
            raise BackendBroke(f"The router did not load {name} (it is {state}); the router's own log says why.")

    async def _end(self, name: str) -> None:
        """Cuts what still runs on it: nothing does, as swap and lending have waited for it. Raises BackendBroke."""
        await self._call("POST", "/models/unload", json={"model": name})  # 400, 404: it is not there
        try:
            async with asyncio.timeout(UNLOAD_S):
                while await self._status(name) in ("loaded", "loading"):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise BackendBroke(f"The router did not unload {name} within {UNLOAD_S:.0f} s; check its log.") from None

    async def free(self) -> None:
        """The model and its versions; what else the router holds, another home's versions too, is not ours."""
        for name, state in (await self._statuses()).items():
            if (name == self._model or self._is_ours(name)) and state in ("loaded", "loading"):
                await self._end(name)

    async def reclaim(self) -> None:
        await self.ready()
        await self._run(self._model, await self._status(self._model))

    async def read_ahead_limit(self, name: str) -> int:
        """One for each of its slots. One more would take the slot that is most like it, and what that one has read."""
        address = self.address(name)
        status, body = await self._call("GET", f"/props?model={quote(self.server_name(name))}", url=address.url)
        try:
            return int(loads(body)["total_slots"]) if status == 200 else 0
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(f"llama-server at {address.url} does not say how many slots it has.") from error

    def _is_ours(self, name: str) -> bool:
        return name.startswith(f"{self._model}@v") and name.endswith(f"-{self.mark}")

    async def unload(self, name: str) -> None:
        await self._take_out(self.server_name(name))

    async def _take_out(self, name: str) -> None:
        """By the router's name for it."""
        await self._end(name)
        await self._write(presets.without_section, name)
        await self._status(name, reload=True)

    async def _status(self, name: str, *, reload: bool = False) -> str | None:
        """unloaded, loading, loaded, sleeping …; None where the router has no such model."""
        return (await self._statuses(reload=reload)).get(name)

    async def _statuses(self, *, reload: bool = False) -> dict[str, str]:
        status, body = await self._call("GET", "/models?reload=1" if reload else "/models")
        if status != 200:
            raise BackendBroke(f"The router at {self._url} answered {status} to GET /models; check its log.")
        try:
            return {str(m["id"]): str(m["status"]["value"]) for m in loads(body)["data"]}
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(f"The router at {self._url} answered GET /models with no list of models.") from error

    async def _lora(self, name: str) -> str | None:
        try:
            return presets.lora_of(await asyncio.to_thread(self._presets.read_text, encoding="utf-8"), name)
        except (OSError, ValueError) as error:
            raise BackendBroke(f"The preset file {self._presets} could not be read: {error}") from error

    async def _write(self, change: Callable[..., str], *about: Any) -> None:
        try:
            await asyncio.to_thread(presets.rewrite, self._presets, change, *about)
        except (presets.PresetError, OSError) as error:
            raise BackendBroke(f"The preset file {self._presets} could not be changed: {error}") from error


def make(settings: Settings, launcher: Launcher) -> LlamaCpp:
    return (LlamaRouter if settings.backend.presets else LlamaCpp)(settings, launcher)
