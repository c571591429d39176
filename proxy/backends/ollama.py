"""Ollama: each version is a model of its own beside the person's, `<model>-rl:vN-<mark of this home>`.

Owns how a version gets into it. Before 0.34.1 that is the model it has and a LoRA, since then a whole model with the
LoRA in it. The person's own model is never written to, and nothing is removed but what the record in our home names.
Not here: how files are made (gguf_files), what a Modelfile says (modelfile). Source: its code of August 2026.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog

from config.backend_kinds import usual_url
from config.settings import Settings
from proxy.backends import gguf_files
from proxy.backends.base import (
    Address,
    Capabilities,
    Conversation,
    LeftoverVersions,
    Misfit,
    ModelDescription,
    Prompt,
    RenderedPrompt,
    ServedModel,
)
from proxy.backends.installed_versions import InstalledVersions
from proxy.backends.modelfile import Modelfile, format_of, parse, release_of
from proxy.backends.ollama_prompts import ollama_request, rendered_prompt
from proxy.backends.openai_compatible import LONG_CALL_BYTES, OpenAICompatible
from proxy.backends.origins import Origins
from proxy.core.errors import BackendBroke, BackendDown, ProxyError, Unsupported
from proxy.core.json_edit import dumps, loads
from proxy.core.server_url import base_url
from proxy.core.upstream import message_in
from trainer.launch import Launcher, LaunchError, ServerFormat

log = structlog.get_logger()

FILES: Final = (0, 5, 5)  # the first version whose /api/create takes uploaded files
RENDERS: Final = (0, 11, 5)  # the first that tells how it renders a prompt
COPIES: Final = 3  # of a whole model at Ollama while it makes one: what was sent, llama-quantize's, the new layer
LONG_S: Final = 3600.0  # to take in a large model, or to load it from a slow disk
FREED_S: Final = 60.0  # until a model is out of the memory
POLL_S: Final = 0.2
KEEP: Final = "15m"  # a new version stays loaded until the switch; after that the server's own rule holds
_VERSION: Final = re.compile(r"(?P<model>.+)@(?P<version>v\d+)")
_OURS: Final = re.compile(r".+-rl:v\d+(-[0-9a-f]{6}(-\d+)?)?")  # of any home; those without a mark are older
_PATH: Final = re.compile(r"(/|[A-Za-z]:\\).*")  # FROM a file; else from a model of Ollama's registry
_BLOB: Final = re.compile(r"sha256-([0-9a-f]{64})")
_DEFAULTS: Final = {"top_k": 40.0, "min_p": 0.0}
PENALISES: Final = (0, 17, 5)  # before it a repetition costs where nobody says otherwise (api/types.go)


class Ollama(OpenAICompatible):
    kind = "ollama"
    capabilities = Capabilities(
        adapters=True,
        token_ids=False,  # the bytes of each token (0.12.11 and newer)
        logprobs=False,  # of before sampling
        capture_members={name: {"logprobs": b"true"} for name in ("chat", "ollama", "ollama-generate")},
        leaves_out=frozenset({"logprobs"}),
        logprobs_of="model",
        dialects=frozenset({"chat", "completions", "responses", "messages", "ollama", "ollama-generate"}),
        implied_tag=":latest",
        slots=1,  # OLLAMA_NUM_PARALLEL
        can_free=True,
        longer_context=(
            "a longer one is OLLAMA_CONTEXT_LENGTH in the environment of `ollama serve`, `PARAMETER num_ctx` in the "
            "model's Modelfile, or options.num_ctx in a request to /api/chat"
        ),
        limitation="Ollama sends the bytes of tokens (0.12.11 and newer) and log-probs of before sampling.",
    )

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings.backend, weights=settings.train.weights)
        url = settings.backend.url or usual_url("ollama")
        self._url = base_url(url.rstrip("/").removesuffix("/api"), is_root=True)
        self._model = _short(settings.backend.model)
        self._weights = settings.train.weights or None
        self._gguf = settings.backend.gguf
        self._launcher = launcher
        self._home = settings.home
        self._installed = InstalledVersions(settings.home / "ollama.json")
        self._origins = Origins(settings.home / "ollama-origins.json")
        self._chosen: dict[str, str] = {}  # versions, and the tag under which each was loaded
        self._loaded: set[str] = set()  # tags
        self._leftover_tags: tuple[str, ...] = ()  # tags like ours that this home did not make
        self._unloaded: set[str] = set()  # tags that were in memory when a run began
        self._version: tuple[int, ...] | None = None  # None: not asked yet, or not a number
        self._digest = ""  # of the model, as last listed: another one is an update
        self._modelfile = Modelfile()

    @property
    def served(self) -> ServedModel:
        """Its OpenAI routes set what the client does not, whatever the Modelfile says; the others do not."""
        older = self._version is not None and self._version < PENALISES
        penalty = {"repetition_penalty": 1.1} if older else {}
        native = {"temperature": 0.8, "top_p": 0.9, **_DEFAULTS, **penalty, **self._modelfile.sampling}
        openai = native | {"temperature": 1.0, "top_p": 1.0}
        return ServedModel(self._model, openai, dict.fromkeys(("ollama", "ollama-generate", "messages"), native))

    @property
    def weights(self) -> str | None:
        return self._weights

    @property
    def state(self) -> str:
        if not self._model:
            return f"ollama at {self._url}"
        how = "whole models" if self._whole else "LoRA files"
        version = ".".join(map(str, self._version)) if self._version else "of unknown version"
        line = f"ollama {version} at {self._url}, versions of {self._model} as {how}"
        if outdated := self._outdated:
            line += (
                f"; {self._model} was updated there: {', '.join(outdated)} go on with the weights that they were made "
                "of, `rlproxy promote base` answers with the new ones"
            )
        return line

    @property
    def _outdated(self) -> list[str]:
        """Loaded versions of a file that the model had before an update."""
        entries = [(tag, self._installed.entry(tag)) for tag in sorted(self._loaded)]
        return [tag for tag, entry in entries if entry and entry.get("file", self._own_digest) != self._own_digest]

    @property
    def _own_digest(self) -> str | None:
        """The digest of the model's own file at Ollama. None where nobody tells, and where a person names the file
        that versions are made of."""
        blob = _BLOB.search(next(iter(self._modelfile.files), ""))
        return blob[1] if blob is not None and not (self._whole and self._gguf) else None

    @property
    def _whole(self) -> bool:
        """Tell whether a version has to be a whole model; of builds that do not say their version, too."""
        return self.server_format == "merged"

    @property
    def server_format(self) -> ServerFormat:
        return format_of(self._version)

    @property
    def obstacle(self) -> str | None:
        if self._version is not None and self._version < FILES:
            return f"This Ollama ({'.'.join(map(str, self._version))}) takes no files over its API; update it."
        if not self._model or not self._whole:
            return None
        base, reason = self._base()
        return reason or (gguf_files.room_problem(base, self._home, (base.parent, COPIES)) if base else None)

    @property
    def growth(self) -> str | None:
        if not self._model or not self._whole:
            return None
        base, _ = self._base()
        return None if base is None else gguf_files.growth_line(base)

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        return Address(self.url, {"model": dumps(self.tag(model))})

    @property
    def leftovers(self) -> LeftoverVersions | None:
        if not self._leftover_tags:
            return None
        return LeftoverVersions(
            f"Ollama has {', '.join(self._leftover_tags)}, which this home did not make",
            f"ollama rm {shlex.join(self._leftover_tags)}",
        )

    def is_version(self, tag: str) -> bool:
        """Tell whether a tag is like those of versions, whichever home made it."""
        return _OURS.fullmatch(tag) is not None

    def tag(self, name: str) -> str:
        """Ollama's name of a version: `llama3.2:3b@v7` is `llama3.2-3b-rl:v7-` and the mark of this home."""
        if (chosen := self._chosen.get(name)) is not None:
            return chosen
        plain = self._plain(name)
        return name if plain is None else next(self._installed.candidates(plain))

    def _plain(self, name: str) -> str | None:
        """The tag of a version without a mark; None for what is not a version."""
        match = _VERSION.fullmatch(name)
        if match is None or match["model"] != self._model:
            return None
        path, slash, last = self._model.rpartition("/")
        return f"{path}{slash}{last.replace(':', '-')}-rl:{match['version']}"

    async def models(self) -> list[dict[str, Any]]:
        """Without versions, whichever home made them: ours are listed by their names anyway."""
        models = [{**m, "id": _short(str(m.get("id", "")))} for m in await super().models()]
        return [m for m in models if not self.is_version(m["id"])]

    async def listed(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        """The entries of `/api/tags` or `/api/ps`, each under its name without `:latest`."""
        status, body = await self._call("GET", path)
        entries = [(_short(str(m["name"])), m) for m in _models(path, status, body)]
        if path == "/api/tags" and self._modelfile.files:
            digest = next((str(m.get("digest", "")) for name, m in entries if name == self._model), self._digest)
            if self._digest and digest != self._digest:
                log.warning("the model was updated in ollama", model=self._model, digest=digest)
                await self._look(self._model)
            self._digest = digest
        return entries

    async def show(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """The answer of `/api/show`."""
        return await self._call("POST", "/api/show", most=LONG_CALL_BYTES, json=body)

    # Finding out

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(self._installed.adopt)
        await asyncio.to_thread(self._sweep)
        await super().start(http, on_restart)
        with contextlib.suppress(ProxyError):  # the next version looks again
            self._note_leftovers(await self._tags())

    def _sweep(self) -> None:
        """Whole models that a killed rlproxy has left on their way to Ollama. Whoever still writes one gives up."""
        for file in (self._home / "gguf").glob("*.fused.gguf"):
            file.unlink(missing_ok=True)
        for file in (self._home / "gguf").glob(".*.fused.gguf.tmp"):
            file.unlink(missing_ok=True)

    async def _name_model(self) -> None:
        if not self._model:
            names = [m["id"] for m in await self.models()]
            if len(names) != 1:
                has = f"has {', '.join(sorted(names))}" if names else "has no model"
                raise BackendDown(f"Ollama at {self._url} {has}; say which one with --model (backend.model).")
            await self._look(names[0])
            self._model = names[0]
        else:
            await self._look(self._model)

    async def ready(self) -> None:
        if not self._modelfile.files or (self._version is not None and self._version < FILES):
            await self._name_model()

    async def _look(self, model: str) -> None:
        """The kind of file, and what it says of the model."""
        status, body = await self._call("GET", "/api/version")
        try:
            version = str(loads(body)["version"]) if status == 200 else ""
        except (ValueError, KeyError, TypeError):
            version = ""
        if not version:
            raise Unsupported(f"No Ollama answers at {self._url}: GET /api/version said {status}; check backend.url.")
        self._version = release_of(version)
        status, body = await self.show({"model": model})
        if status == 404:
            raise BackendDown(f"Ollama has no model {model}; `ollama pull {model}`, or correct backend.model.")
        try:
            self._modelfile = parse(str(loads(body)["modelfile"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BackendBroke(f"Ollama answered POST /api/show with {status} and no Modelfile.") from error

    def _base(self, earlier_digest: str | None = None) -> tuple[Path | None, str | None]:
        """The model's own file, or why there is none to be read; with `earlier_digest` the one of that digest.
        Blocking."""
        path = self._gguf
        if path is None:
            first = next(iter(self._modelfile.files), "")
            if not _PATH.fullmatch(first):
                return None, f"Ollama runs {self._model} from no GGUF file, so no version of it can be made."
            path = Path(first)
        path = path if earlier_digest is None else path.with_name(f"sha256-{earlier_digest}")
        try:
            path = path if self._gguf is not None else self._model_folders.resolve(path)
            reason = gguf_files.unreadable_reason(path)
        except (OSError, ValueError) as error:
            reason = f"{path} is not opened: {getattr(error, 'strerror', None) or error}"
        remedy = "name a copy of it with backend.gguf, or let rlproxy's user read it"
        is_blob = path.parent.name == "blobs" and _BLOB.fullmatch(path.name) is not None
        if reason is not None and self._gguf is None and is_blob and not self._model_folders.holds(path):
            folder = path.parent.parent
            reason = f"its folder of models, {folder}, is not one that rlproxy reads"
            remedy = f'set backend.models_dir = "{folder}" in rlproxy.toml, and start rlproxy again'
        return (path, None) if reason is None else (None, f"Ollama takes whole models only, and {reason}; {remedy}.")

    async def describe(self) -> ModelDescription:
        """Its digest changes with its template, too; the model list that all servers have does not."""
        digest = (await self._tags()).get(self._model, "")
        return ModelDescription(identity=f"{self._model} {digest} of ollama {self._version}")

    async def _tags(self) -> dict[str, str]:
        """All its models, and the digest of each."""
        return {name: str(m.get("digest", "")) for name, m in await self.listed("/api/tags")}

    # Prompts

    async def render(self, prompt: Prompt) -> RenderedPrompt | None:
        """By the route that it was asked by: each makes another conversation of the same messages. Older ones than
        RENDERS would answer the question.

        Whoever renders is in memory then. Versions have the model's own template, so one of them is asked where the
        model is not loaded and would push it out.
        """
        if self._version is not None and self._version < RENDERS:
            return None
        path, body = ollama_request(prompt)
        in_memory = await self._in_memory()
        loaded = self._model if self._model in in_memory or not in_memory else min(in_memory)
        request = {**body, "model": loaded, "stream": False, "_debug_render_only": True}
        text = await self._render(path, request, "_debug_info", "rendered_template")
        return None if text is None else rendered_prompt(str(text), prompt)

    # Versions

    async def load(self, name: str, path: Path) -> None:
        await self._look(self._model)  # it may have been updated since
        tag, adapter = await self._free_tag(name), await gguf_files.digest_of(path)
        digest, entry = (await self._tags()).get(tag), self._installed.entry(tag)
        if digest is not None and entry is not None and entry["adapter"] != adapter:
            await self._remove(tag)
            digest = None
        if digest is None:
            await self._make(tag, path, adapter)
        elif entry is not None and entry["digest"] is None:  # made just before a crash
            self._installed.record(tag, **{**entry, "digest": digest})
        await self._warm(tag)
        self._installed.mark_used(tag)
        self._loaded.add(tag)
        await self._clean()

    async def _free_tag(self, name: str) -> str:
        """A tag that this home has made or that nobody has: what another program has put there stays."""
        plain, digests = self._plain(name), await self._tags()
        assert plain is not None, name
        tag = next(t for t in self._installed.candidates(plain) if t not in digests or self._is_ours(t, digests[t]))
        if (previous := self._chosen.get(name)) not in (None, tag):
            self._loaded.discard(str(previous))
        self._chosen[name] = tag
        return tag

    async def unload(self, name: str) -> None:
        """Its memory is given back; the model stays for a while, for whoever asks for it again."""
        tag = self.tag(name)
        self._loaded.discard(tag)
        if tag in await self._in_memory():  # else, before 0.34.1, whichever version is there in its place would go
            await self._let_go(tag)
        await self._clean()

    async def _let_go(self, tag: str) -> None:
        await self._call("POST", "/api/generate", json={"model": tag, "keep_alive": 0})  # 404: it is not there

    async def _clean(self) -> None:
        """Takes old versions out. Where that fails it costs disk, not answers; the next swap tries again."""
        try:
            digests = await self._tags()
            self._note_leftovers(digests)
            for spare in self._installed.spare(self._loaded):
                if (digest := digests.get(spare)) is None or not self._is_ours(spare, digest):
                    self._installed.drop(spare)
                else:
                    await self._remove(spare)
        except ProxyError as error:
            log.warning("old versions stay in ollama", error=str(error))

    def _note_leftovers(self, tags: Collection[str]) -> None:
        self._leftover_tags = tuple(sorted(t for t in tags if self.is_version(t) and self._installed.entry(t) is None))

    def _is_ours(self, tag: str, digest: str) -> bool:
        """A name of ours under which somebody else has made a model since is theirs."""
        entry = self._installed.entry(tag)
        return self.is_version(tag) and entry is not None and entry["digest"] in (None, digest)

    async def _remove(self, tag: str) -> None:
        status, body = await self._call("DELETE", "/api/delete", json={"model": tag})
        if status not in (200, 404):
            raise BackendBroke(f"Ollama did not remove {tag} ({status}): {message_in(body)}")
        self._installed.drop(tag)

    async def _make(self, tag: str, path: Path, adapter: str) -> None:
        version, digest = f"{path.name}-{adapter}", self._own_digest
        earlier_digest = self._origins.earlier_file(version, digest)
        if earlier_digest is not None and not await self._has(f"sha256:{earlier_digest}"):
            raise Misfit(
                f"it was trained on {self._model} as it was before an update, and Ollama has those weights no more; "
                "the next run makes a version of what is there now."
            )
        if self._whole:
            members = await self._whole_model(path, earlier_digest)
        else:
            file = await gguf_files.adapter_file(self._launcher, path, self._weights, self._home / "gguf")
            members = {"adapters": {"adapter.gguf": await self._uploaded(file)}, **self._lower_part(earlier_digest)}
        self._installed.record(tag, adapter=adapter, digest=None, file=earlier_digest or digest)
        body = {"model": tag, **members, "stream": False}
        status, answer = await self._call("POST", "/api/create", json=body, timeout_s=LONG_S)
        made_digest = (await self._tags()).get(tag)
        if status != 200 or made_digest is None:
            if made_digest is None:
                self._installed.drop(tag)
            raise BackendBroke(f"Ollama did not make {tag} ({status}): {message_in(answer)}")
        self._installed.record(tag, adapter=adapter, digest=made_digest, file=earlier_digest or digest)
        self._origins.record(version, digest)

    def _lower_part(self, earlier_digest: str | None) -> dict[str, Any]:
        """The base of a LoRA: the model, or the file that it had before an update."""
        if earlier_digest is None:
            return {"from": self._model}
        return {"files": {"model.gguf": f"sha256:{earlier_digest}", **self._projectors}, **self._modelfile.create}

    @property
    def _projectors(self) -> dict[str, str]:
        """The files of the part that sees pictures; Ollama has them already."""
        blobs = [_BLOB.search(file) for file in self._modelfile.files[1:]]
        return {f"projector-{n}.gguf": f"sha256:{blob[1]}" for n, blob in enumerate(blobs) if blob is not None}

    async def _whole_model(self, path: Path, earlier_digest: str | None) -> dict[str, Any]:
        """Write the model's own Modelfile over a file with the adapter in it."""
        if (obstacle := await asyncio.to_thread(lambda: self.obstacle)) is not None:
            raise Unsupported(obstacle)
        base, reason = await asyncio.to_thread(self._base, earlier_digest)
        if base is None:
            raise Unsupported(str(reason))
        out = self._home / "gguf" / f"{path.name}.fused.gguf"
        try:
            await self._launcher.fuse(path, base, out)
            files = {"model.gguf": await self._uploaded(out), **self._projectors}
        except LaunchError as error:
            raise BackendBroke(str(error)) from error
        finally:
            await asyncio.to_thread(out.unlink, missing_ok=True)  # Ollama has its own copy, and it is large
        return {"files": files, **self._modelfile.create}

    async def _uploaded(self, file: Path) -> str:
        """Its digest, when Ollama has it."""
        digest = f"sha256:{await gguf_files.sha256(file)}"
        if await self._has(digest):
            return digest
        # On the loop: a file that a thread opens while this is cancelled would stay open. It is one of our own.
        with file.open("rb") as content:
            status, answer = await self._call("POST", f"/api/blobs/{digest}", data=content, timeout_s=LONG_S)
        if status not in (200, 201):
            raise BackendBroke(f"Ollama did not take {file.name} ({status}): {message_in(answer)}")
        return digest

    async def _has(self, digest: str) -> bool:
        return (await self._call("HEAD", f"/api/blobs/{digest}"))[0] == 200

    async def _warm(self, tag: str) -> None:
        """Into memory, before anybody asks for it."""
        body = {"model": tag, "keep_alive": KEEP, "stream": False}
        status, answer = await self._call("POST", "/api/generate", json=body, timeout_s=LONG_S)
        if status != 200:
            raise BackendBroke(f"Ollama did not load {tag} ({status}): {message_in(answer)}")

    # One GPU

    async def free(self) -> None:
        """The model and its versions, whoever had them loaded; what else it holds is not ours to take out."""
        self._unloaded = tags = await self._in_memory()
        for tag in sorted(tags):
            await self._let_go(tag)
        try:
            async with asyncio.timeout(FREED_S):
                while tags := await self._in_memory():  # it says yes at once, and takes a moment
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise BackendBroke(
                f"Ollama still has {', '.join(sorted(tags))} in memory after {FREED_S:.0f} s; does another program "
                "ask it directly (`ollama ps`)?"
            ) from None

    async def reclaim(self) -> None:
        """The model itself, unless only versions of it were in memory: with room for one it would be in their way."""
        await self._look(self._model)
        if self._model in self._unloaded or not self._unloaded:
            await self._warm(self._model)

    async def _in_memory(self) -> set[str]:
        """The model and its versions, those that are in memory."""
        names = {name for name, _ in await self.listed("/api/ps")}
        return {tag for tag in names if tag == self._model or self._installed.entry(tag) is not None}


def _models(path: str, status: int, body: bytes) -> list[dict[str, Any]]:
    """A list of its own; each has a name. Raises BackendBroke."""
    try:
        return [model for model in loads(body)["models"] if model["name"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BackendBroke(f"Ollama answered GET {path} with {status} and no list of models.") from error


def _short(name: str) -> str:
    return name.removesuffix(":latest")


make = Ollama
