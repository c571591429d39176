"""vLLM: runtime LoRA routes, exact token ids and log-probs.

Needs `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; wants `--logprobs-mode processed_logprobs`, so that
log-probs are of the sampling distribution, and `--generation-config vllm`, so that what no request says is neutral.
Where the model's own defaults may be in force, its log-probs tell. Every version gets a fresh name: reloading under an
old one may serve stale prefix-cache blocks, and `load_inplace` changes running streams half-way. Not here: several of
them (replicas).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from config.backend_kinds import BACKENDS
from config.sections import BackendSection
from config.settings import Settings
from proxy.backends.base import Backend, Capabilities, Prompt, RenderedPrompt
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.backends.replicas.addresses import ServerName, is_name
from proxy.backends.sampling_defaults import (
    FILE,
    MEMBERS,
    NEUTRAL,
    Defaults,
    Odds,
    file_defaults,
    first_token_odds,
    is_before_sampling,
    is_file_in_force,
)
from proxy.core.errors import BackendBroke, Unsupported
from proxy.core.json_edit import loads
from proxy.core.server_url import base_url
from proxy.core.upstream import message_in
from trainer.launch import Launcher

log = structlog.get_logger()

SLEEP_S: Final = 600.0  # running answers end first, and the weights of a large model go to the machine's memory
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that --max-lora-rank takes
PROBE_RANK: Final = 1_000_000
NO_ROUTES: Final = f"vLLM at {{url}} has no routes to load an adapter: start it with `{BACKENDS['vllm'].start}`"
# A first word that could be many, so that sampling differently shows.
ASK: Final = [{"role": "user", "content": "Say one word, any word."}]
_MOST: Final = re.compile(r"max_lora_rank\D{1,3}(\d+)")


class VLLM(OpenAICompatible):
    kind = "vllm"
    capabilities = Capabilities(
        adapters=True,
        server_format="vllm",
        token_ids=True,
        logprobs=True,
        capture_members={
            "chat": {"logprobs": b"true", "return_token_ids": b"true"},
            "completions": {"logprobs": b"0", "return_token_ids": b"true"},
            "responses": {"include": b'["message.output_text.logprobs"]', "enable_response_messages": b"true"},
        },
        dialects=frozenset({"chat", "completions", "responses", "messages"}),
        slots=256,  # --max-num-seqs
        can_free=True,
    )

    def __init__(self, settings: BackendSection, weights: str = "", home: Path | None = None) -> None:
        super().__init__(settings, home, weights)
        self._trained = weights
        self._defaults = Defaults(NEUTRAL, "not asked yet", frozenset(NEUTRAL))
        self._adapters: dict[str, Path] = {}  # what it was given by us, by name

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        await super().start(http, on_restart)
        if self._model:
            await self._look_how_it_samples()

    async def _samples_by(self) -> Defaults | None:
        colder = {**MEMBERS, "temperature": MEMBERS["temperature"] / 2}
        defaults, hot, cold = await asyncio.gather(
            self._file_or_not(), self._likeliest(MEMBERS), self._likeliest(colder)
        )
        return replace(defaults, logprobs_of="model") if is_before_sampling(hot, cold) else defaults

    async def _file_or_not(self) -> Defaults:
        """The model's own defaults, unless it was started with `--generation-config vllm`. No route tells, but its
        log-probs do: one token, asked without saying how to sample, with the file's way, and with the neutral one."""
        root = (await self._own_entry()).get("root")
        for spec, folders in ((root, self._model_folders), (self._trained, None)):
            if not isinstance(spec, str) or not spec:
                continue
            if (filed := await asyncio.to_thread(file_defaults, spec, folders)) is not None:
                break
        else:
            unsure = frozenset(NEUTRAL) if root or self._trained else frozenset[str]()
            return Defaults(NEUTRAL, f"assumed: the model's {FILE} is not on this machine", unsure)
        file, sampling = filed
        if not sampling:
            return Defaults(NEUTRAL, f"{file} says nothing else")
        ways: tuple[Mapping[str, float], ...] = ({}, sampling, MEMBERS)
        used = is_file_in_force(*await asyncio.gather(*(self._likeliest(way) for way in ways)))
        if used is False:
            return Defaults(NEUTRAL, f"its log-probs are not those of {file}")
        if used:
            return Defaults({**NEUTRAL, **sampling}, f"{file}, and its log-probs agree")
        return Defaults({**NEUTRAL, **sampling}, f"{file}; whether vLLM takes it cannot be told", frozenset(sampling))

    async def _likeliest(self, way: Mapping[str, float]) -> Odds:
        """Empty where it does not tell."""
        body = {"model": self._model, "messages": ASK, "max_tokens": 1, "logprobs": True, "top_logprobs": 5, **way}
        status, answer = await self._call("POST", "/v1/chat/completions", json=body)
        try:
            return first_token_odds(answer) if status == 200 else {}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return {}

    async def render(self, prompt: Prompt) -> RenderedPrompt | None:
        raw = prompt.text if prompt.dialect == "completions" else None
        ids = await self._render("/tokenize", prompt.chat() if raw is None else {"prompt": raw}, "tokens")
        return None if ids is None else RenderedPrompt(None, ids)

    async def load(self, name: str, path: Path) -> None:
        if self.server_name(name) in {m["id"] for m in await self.models()}:
            if self._adapters.get(name) == path:
                return
            await self.unload(name)  # an earlier rlproxy's of this home
        status, answer = await self._load(self.server_name(name), path)
        if _no_such_route(status, answer):
            raise Unsupported(NO_ROUTES.format(url=self.url) + ".")
        if status != 200:
            raise BackendBroke(f"The backend refused the adapter {name} ({status}): {message_in(answer)}")
        self._adapters[name] = path

    async def _load(self, name: str, path: Path) -> tuple[int, bytes]:
        body = {"lora_name": name, "lora_path": str(path)}
        return await self._call("POST", "/v1/load_lora_adapter", json=body)

    async def unload(self, name: str) -> None:
        status, answer = await self._call("POST", "/v1/unload_lora_adapter", json={"lora_name": self.server_name(name)})
        if status not in (200, 400, 404):  # 400 and 404: it is not there
            raise BackendBroke(f"The backend did not unload {name} ({status}): {message_in(answer)}")

    async def check(self, rank: int, folder: Path) -> str | None:
        """vLLM has no route that tells its highest rank, but names it when it refuses a higher one. So it is asked
        for an adapter of an impossible rank and no weights: that loads nothing, and takes no place from another."""
        try:
            probe = await asyncio.to_thread(_probe, folder)
        except OSError as error:
            return f"no adapter can be written to {folder} ({error})"
        try:
            status, answer = await self._load("rlproxy-probe", probe)
        finally:
            await asyncio.to_thread(shutil.rmtree, probe, ignore_errors=True)
        if _no_such_route(status, answer):
            return NO_ROUTES.format(url=self.url)
        message = message_in(answer)
        if status == 404:
            return f"vLLM at {self.url} cannot read {folder}: give it that folder under the same path ({message})"
        if "not enabled" in message:
            return f"vLLM at {self.url} takes no adapters: start it with `{BACKENDS['vllm'].start}` ({message})"
        if (match := _MOST.search(message)) is None:
            log.warning("vllm does not say what rank it takes", answer=message, status=status)
            return None
        most = int(match[1])
        return None if rank <= most else _too_high(self.url, rank, most)

    async def lacks_room(self, lines: int) -> str | None:
        """Only vLLM's routes for development tell how many adapters it keeps; a server without them is not asked."""
        status, answer = await self._call("GET", "/server_info?config_format=json")
        try:
            lora = loads(answer)["vllm_config"]["lora_config"] if status == 200 else None
            places = None if lora is None else int(lora["max_cpu_loras"] or lora["max_loras"])
        except (ValueError, KeyError, TypeError):
            return None
        if places is None or places >= adapters_for(lines):
            return None
        return (
            f"vLLM at {self.url} keeps {places} adapters, and {lines} lines need {adapters_for(lines)}: each its live "
            "and its previous version, and one on its way. Start it with --max-cpu-loras "
            f"{adapters_for(lines)} --max-loras {lines}."
        )

    async def free(self) -> None:
        """Level 1: the weights go to the machine's memory, its adapters with them; what runs ends first."""
        status, answer = await self._call("GET", "/is_sleeping")
        if status != 200 or not await self._can_sleep():
            raise Unsupported(
                f"vLLM at {self.url} cannot give its GPU back: start it with --enable-sleep-mode and "
                "VLLM_SERVER_DEV_MODE=1, reachable for nobody but rlproxy."
            )
        if loads(answer).get("is_sleeping"):
            return
        status, answer = await self._call("POST", "/sleep?level=1&mode=wait", timeout_s=SLEEP_S)
        if status != 200:
            raise BackendBroke(f"vLLM at {self.url} does not sleep ({status}): {message_in(answer)}")

    async def reclaim(self) -> None:
        status, answer = await self._call("GET", "/is_sleeping")
        if status == 404 or (status == 200 and not loads(answer).get("is_sleeping")):
            return
        status, answer = await self._call("POST", "/wake_up", timeout_s=SLEEP_S)
        if status != 200:
            raise BackendBroke(f"vLLM at {self.url} does not wake up ({status}): {message_in(answer)}")

    async def _can_sleep(self) -> bool:
        """Without the option the route answers that it sleeps, and frees nothing. Versions that do not tell: yes."""
        status, answer = await self._call("GET", "/server_info?config_format=json")
        if status != 200:
            return True
        try:
            return bool(loads(answer)["vllm_config"]["model_config"].get("enable_sleep_mode", True))
        except (ValueError, KeyError, TypeError, AttributeError):
            return True


def adapters_for(lines: int) -> int:
    """How many adapters a server keeps for so many lines."""
    return 2 * lines + 1


def _no_such_route(status: int, answer: bytes) -> bool:
    return status == 404 and b"Not Found" in answer  # FastAPI's; an adapter that is not found is a NotFoundError


def _too_high(url: str, rank: int, most: int) -> str:
    enough = next((r for r in RANKS if r >= rank), None)
    remedy = f"start it with --max-lora-rank {enough}, or " if enough else ""
    return (
        f"a run makes an adapter of rank {rank}, and vLLM at {url} takes up to {most}: {remedy}set "
        f"train.overrides.rank to {most}"
    )


def _probe(folder: Path) -> Path:
    """Where the adapters are, so that it is seen whether the server can read there. Raises OSError."""
    for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
        missing.mkdir(exist_ok=True)
        missing.chmod(0o755)  # the server may be another user
    probe = Path(tempfile.mkdtemp(prefix=".probe-", dir=folder))
    probe.chmod(0o755)
    about = {"peft_type": "LORA", "r": PROBE_RANK, "lora_alpha": 1, "target_modules": ["q_proj"], "bias": "none"}
    (probe / "adapter_config.json").write_text(json.dumps(about))
    (probe / "adapter_config.json").chmod(0o644)
    return probe


def make(settings: Settings, _: Launcher) -> Backend:
    chosen, weights, home = settings.backend, settings.train.weights, settings.home
    written = (chosen.url, *chosen.replicas)
    if len(written) == 1 and not is_name(chosen.url):
        return VLLM(chosen, weights, home)
    from proxy.backends.replicas.replicas import Replicas  # few have them

    urls = dict.fromkeys(base_url(url, is_root=True) for url in written if not is_name(url))
    names = [ServerName(url) for url in dict.fromkeys(written) if is_name(url)]
    return Replicas(lambda url: VLLM(chosen.model_copy(update={"url": url}), weights, home), list(urls), names)
