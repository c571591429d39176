"""LM Studio: each version is a whole model in its models folder, loaded and unloaded over its REST API v1.

Owns what has to be there for that, and says what is not before anything is trained. It knows where a version lies, and
which instance answers for it. An instance that LM Studio has dropped is loaded again before a request is sent. Asked
for a name that it does not know, it may answer with another model. Not here: how the file is made (gguf_files). Source:
LM Studio's documentation of REST API v1, April 2026; no server can be had here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from config.backend_kinds import usual_url
from config.settings import Settings
from proxy.backends import gguf_files
from proxy.backends.base import Address, Capabilities, Conversation, LeftoverVersions
from proxy.backends.installed_versions import InstalledVersions, write
from proxy.backends.openai_compatible import OpenAICompatible
from proxy.core.errors import BackendBroke, BackendDown, Unsupported
from proxy.core.json_edit import dumps, loads
from proxy.core.server_url import base_url
from proxy.core.upstream import message_in
from trainer.launch import Launcher, LaunchError

FOLDER: Final = "~/.lmstudio/models"
PUBLISHER: Final = "rlproxy"  # the folder of ours among the models
LOAD_S: Final = 3600.0
FOUND_S: Final = 60.0  # until it has seen a new file in its folder
POLL_S: Final = 0.5
AGAIN_S: Final = 10.0  # between looks at what was missing
FREED_S: Final = 60.0  # until an instance is out of the memory
# What it says of an instance and takes for a new one.
LOADED_AS: Final = ("context_length", "eval_batch_size", "flash_attention", "num_experts", "offload_kv_cache_to_gpu")
_VERSION: Final = re.compile(r"(?P<model>.+)@(?P<version>v\d+)")
# Of any home; those without a mark are older. The last number is of a second instance.
_OURS: Final = re.compile(r"(.*/)?[\w.-]+-rl-v\d+(-[0-9a-f]{6}(-\d+)?)?(:\d+)?")


class LMStudio(OpenAICompatible):
    kind = "lmstudio"
    capabilities = Capabilities(
        adapters=True,
        server_format="merged",
        token_ids=False,
        logprobs=False,
        # Of any other route it says 200 and an error, so none is tried.
        dialects=frozenset({"chat", "completions", "responses"}),
        can_free=True,
        slots=4,
        longer_context=(
            "a longer one is Context Length where the model is loaded, and Context Overflow says what is left out"
        ),
        limitation="LM Studio sends no token ids and no log-probs: a run computes its own.",
    )

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        super().__init__(settings.backend, weights=settings.train.weights)
        self._url = base_url(settings.backend.url or usual_url("lmstudio"), is_root=True)
        self._weights = settings.train.weights or None
        self._gguf = settings.backend.gguf
        self._folder = settings.backend.models_dir or Path(FOLDER).expanduser()
        self._launcher = launcher
        self._installed = InstalledVersions(settings.home / "lmstudio.json")
        self._unloaded_file = settings.home / "lmstudio-put-out.json"  # on disk: nobody else knows how they were loaded
        self._chosen: dict[str, str] = {}  # versions, and the folder that each was put into
        self._leftovers: LeftoverVersions | None = None
        self._version_instances: dict[str, str] = {}  # versions that are loaded, and the instance of each
        self._about: Mapping[str, Any] = {}  # the model's entry in its list
        self._base: Path | None = None
        self._problem: str | None = "LM Studio has not been asked yet."
        self._looked_at = 0.0
        self._repairing = asyncio.Lock()

    @property
    def weights(self) -> str | None:
        return self._weights

    @property
    def state(self) -> str:
        return f"lmstudio at {self._url}, versions as whole models in {self._folder / PUBLISHER}"

    @property
    def obstacle(self) -> str | None:
        if self._problem is not None or self._base is None:
            return self._problem
        return gguf_files.room_problem(self._base, self._folder)

    @property
    def growth(self) -> str | None:
        return None if self._base is None else gguf_files.growth_line(self._base)

    def address(self, model: str, conversation: Conversation | None = None) -> Address:
        if _VERSION.fullmatch(model) is None:
            return super().address(model)
        if (instance := self._version_instances.get(model)) is None:
            raise BackendDown(f"LM Studio has {model} not loaded.", retry_after=5)
        return Address(self.url, {"model": dumps(instance)})

    async def models(self) -> list[dict[str, Any]]:
        """Without our own versions: they are listed by their names anyway."""
        return [m for m in await super().models() if not _OURS.fullmatch(str(m.get("id", "")))]

    @property
    def leftovers(self) -> LeftoverVersions | None:
        return self._leftovers

    # Finding out

    async def start(self, http: aiohttp.ClientSession, on_restart: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(self._installed.adopt)
        await super().start(http, on_restart)
        await asyncio.to_thread(self._note_leftovers)

    def _note_leftovers(self) -> None:
        folder = self._folder / PUBLISHER
        names = sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []
        leftovers = [name for name in names if _OURS.fullmatch(name) and self._installed.entry(name) is None]
        remove = f"rm -r {shlex.join(str(folder / name) for name in leftovers)}"
        line = f"LM Studio has {', '.join(leftovers)}, which this home did not make"
        self._leftovers = LeftoverVersions(line, remove) if leftovers else None

    async def ready(self) -> None:
        """Looks each time a version is loaded: it drops idle ones by itself, and all of them when it restarts."""
        is_retry = self._problem is not None and time.monotonic() > self._looked_at + AGAIN_S  # it may be mended
        if not self._model or not self._about or is_retry:
            await self._name_model()
        if self._version_instances and await self._missing():
            async with self._repairing:
                for name in await self._missing():
                    self._version_instances[name] = await self._start(self._slug(name))

    async def _missing(self) -> list[str]:
        loaded = {instance for entry in await self._list() for instance in _instances(entry)}
        return [name for name, instance in self._version_instances.items() if instance not in loaded]

    async def _name_model(self) -> None:
        listed = [m for m in await self._list() if m.get("type") == "llm" and m.get("publisher") != PUBLISHER]
        if not self._model:
            loaded = [m for m in listed if m.get("loaded_instances")]
            candidates = loaded if len(loaded) == 1 else listed
            if len(candidates) != 1:
                has = ", ".join(sorted(str(m["key"]) for m in candidates)) or "no model"
                raise BackendDown(f"LM Studio at {self._url} has {has}; say which one with --model (backend.model).")
            self._model = str(candidates[0]["key"])
        self._about = next((m for m in listed if self._model in _names(m)), {})
        if not self._about:
            raise BackendDown(f"LM Studio has no model {self._model}; download it there, or correct backend.model.")
        await asyncio.to_thread(self._examine)

    def _examine(self) -> None:
        """Needs of a version: the folder, and the model's own file."""
        self._base, self._problem, self._looked_at = None, None, time.monotonic()
        if not self._folder.is_dir():
            self._problem = f"LM Studio's models folder {self._folder} is not there; name it with backend.models_dir."
            return
        if self._gguf is None and self._about.get("format") != "gguf":
            self._problem = f"LM Studio runs {self._model} from no GGUF file, so no version of it can be made."
            return
        files = [self._gguf] if self._gguf else self._files_of(self._about)
        if len(files) != 1:
            count = f"{len(files)} files" if files else "no file"
            self._problem = f"{count} in {self._folder} may be {self._model}; name the right one with backend.gguf."
        elif (reason := gguf_files.unreadable_reason(files[0])) is not None:
            self._problem = f"LM Studio takes whole models only, and {reason}."
        else:
            self._base = files[0]

    def _files_of(self, entry: Mapping[str, Any]) -> list[Path]:
        """By its size, the one thing that it says of the file; by its name where several have that."""
        size, name = entry.get("size_bytes"), _plain(_last(entry["key"]))
        files = [f for f in self._folder.rglob("*.gguf") if f.is_file() and f.stat().st_size == size]
        files = [f for f in files if f.relative_to(self._folder).parts[0] != PUBLISHER and self._model_folders.holds(f)]
        matches = [f for f in files if name in _plain(str(f.relative_to(self._folder)))]
        return files if len(files) == 1 else matches

    async def _list(self) -> list[dict[str, Any]]:
        """All its models, loaded or not."""
        status, body = await self._call("GET", "/api/v1/models")
        try:
            models: list[dict[str, Any]] = loads(body)["models"]
            return list(models)
        except (ValueError, KeyError, TypeError):  # an older one says 200 of any route
            self._problem = f"No REST API v1 answers at {self._url} (GET /api/v1/models: {status}): it needs 0.4."
            raise Unsupported(
                f"{self._problem} Update LM Studio, correct backend.url, or capture only (--backend openai)."
            ) from None

    # Versions

    def _slug(self, name: str) -> str:
        return self._chosen[name]

    def _free_slug(self, name: str) -> str:
        """One that this home has made or that is not there: another home's, or a person's, stays as it is."""
        model, _, version = name.rpartition("@")
        plain = f"{re.sub(r'[^a-z0-9.]+', '-', model.lower())}-rl-{version}"
        return next(
            slug
            for slug in self._installed.candidates(plain)
            if self._installed.entry(slug) is not None or not self._file(slug).parent.exists()
        )

    def _file(self, slug: str) -> Path:
        return self._folder / PUBLISHER / slug / f"{slug}.gguf"

    async def load(self, name: str, path: Path) -> None:
        await self._name_model()  # it may have moved, or been restarted with other settings
        self._chosen[name] = await asyncio.to_thread(self._free_slug, name)
        await self._install(name, path)
        if name not in self._version_instances:
            self._version_instances[name] = await self._start(self._slug(name))
        self._installed.mark_used(self._slug(name))
        await self._clean()

    async def _install(self, name: str, path: Path) -> None:
        """The file of a version into the folder, if it is not there yet."""
        slug, adapter = self._slug(name), await gguf_files.digest_of(path)
        file, entry = self._file(slug), self._installed.entry(slug)
        if entry is not None and entry["adapter"] == adapter and file.exists():
            return
        if (obstacle := self.obstacle) is not None:
            raise Unsupported(obstacle)
        assert self._base is not None
        self._installed.record(slug, adapter=adapter)
        try:
            await self._launcher.fuse(path, self._base, file)
        except LaunchError as error:
            await asyncio.to_thread(self._remove, slug)
            raise BackendBroke(str(error)) from error

    async def _start(self, slug: str) -> str:
        """Load it, with as long a context as the model itself has; the name of the instance.

        One of ours that an earlier rlproxy has left loaded is taken over.
        """
        entry, installed = await self._entry(slug), self._installed.entry(slug) or {}
        if installed.get("instance") in _instances(entry):
            return str(installed["instance"])
        same = _configs(self._about) or {"": installed.get("config") or {}}  # its own last one, where that is gone
        config = {k: v for k, v in next(iter(same.values())).items() if k == "context_length"}
        instance = await self._load_as(str(entry["key"]), config)
        self._installed.record(slug, **{**installed, "instance": instance, "config": config})
        return instance

    async def _load_as(self, key: str, config: Mapping[str, Any]) -> str:
        body = {"model": key, **config}
        status, answer = await self._call("POST", "/api/v1/models/load", json=body, timeout_s=LOAD_S)
        try:
            return str(loads(answer)["instance_id"])
        except (ValueError, KeyError, TypeError):
            raise BackendBroke(f"LM Studio did not load {key} ({status}): {message_in(answer)}") from None

    async def _entry(self, slug: str) -> Mapping[str, Any]:
        """LM Studio's entry for a file that was put into its folder, once it has seen it."""
        try:
            async with asyncio.timeout(FOUND_S):
                while True:
                    for entry in await self._list():
                        if entry.get("publisher") == PUBLISHER and _plain(_last(entry["key"])) == _plain(slug):
                            return entry
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise BackendBroke(
                f"LM Studio does not see {slug} in {self._folder}; is it the folder it uses (backend.models_dir)?"
            ) from None

    async def unload(self, name: str) -> None:
        if (instance := self._version_instances.pop(name, None)) is not None:
            await self._call("POST", "/api/v1/models/unload", json={"instance_id": instance})  # 404: it is gone
        await self._clean()

    # One GPU

    async def free(self) -> None:
        """All instances of the model and of its versions; what else it holds is not ours to take out."""
        await self._name_model()
        if self._model != self._about["key"]:
            raise Unsupported(
                f"LM Studio would load {self._model} again under another name after a run; set backend.model to "
                f"{self._about['key']}, or unset train.share_gpu."
            )
        if theirs := _configs(self._about):
            await asyncio.to_thread(write, self._unloaded_file, {**self._resting(), **theirs})
        self._version_instances.clear()  # nothing is missing then
        out = await self._loaded_instances()
        for instance in sorted(out):
            status, answer = await self._call("POST", "/api/v1/models/unload", json={"instance_id": instance})
            if status not in (200, 404):
                raise BackendBroke(f"LM Studio did not unload {instance} ({status}): {message_in(answer)}")
        try:
            async with asyncio.timeout(FREED_S):
                while out := await self._loaded_instances():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise BackendBroke(
                f"LM Studio still has {', '.join(sorted(out))} loaded after {FREED_S:.0f} s; does another program ask "
                "it directly?"
            ) from None

    async def reclaim(self) -> None:
        """The model's own instances as they were; where there was none, it is loaded when it is first asked."""
        await self._name_model()
        loaded, resting = _instances(self._about), self._resting()
        for instance, config in list(resting.items()):
            if instance not in loaded:
                await self._load_as(self._model, config)
            del resting[instance]  # one by one: what fails now is tried again without a second of the others
            await asyncio.to_thread(write, self._unloaded_file, resting)
        await asyncio.to_thread(self._unloaded_file.unlink, missing_ok=True)

    async def _loaded_instances(self) -> set[str]:
        """Instances of the model, and those of its versions that the record names."""
        ours = {(self._installed.entry(slug) or {}).get("instance") for slug in self._installed.names()}
        entries = await self._list()
        versions = {i for entry in entries if entry.get("publisher") == PUBLISHER for i in _instances(entry)}
        model = {i for entry in entries if entry.get("key") == self._model for i in _instances(entry)}
        return model | (versions & ours)

    def _resting(self) -> dict[str, dict[str, Any]]:
        return dict(loads(self._unloaded_file.read_bytes())) if self._unloaded_file.exists() else {}

    async def _clean(self) -> None:
        for slug in self._installed.spare({self._slug(name) for name in self._version_instances}):
            await asyncio.to_thread(self._remove, slug)
        await asyncio.to_thread(self._note_leftovers)

    def _remove(self, slug: str) -> None:
        """Only what the record names; a folder in which somebody has put more stays."""
        file = self._file(slug)
        for path in (file, file.with_name(f".{file.name}.tmp")):  # the latter: of a conversion that was killed
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._file(slug).parent.rmdir()
        self._installed.drop(slug)


def _configs(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Its instances, and how each was loaded."""
    configs = {str(instance["id"]): instance.get("config") or {} for instance in entry.get("loaded_instances") or ()}
    return {id: {k: config[k] for k in LOADED_AS if config.get(k) is not None} for id, config in configs.items()}


def _names(entry: Mapping[str, Any]) -> set[str]:
    return {str(entry.get("key")), *_instances(entry)}


def _instances(entry: Mapping[str, Any]) -> set[str]:
    return {str(instance["id"]) for instance in entry.get("loaded_instances") or ()}


def _last(key: str) -> str:
    """A key without publisher and quantisation."""
    return key.rpartition("/")[2].partition("@")[0]


def _plain(name: str) -> str:
    """Without what LM Studio makes of a file's name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


make = LMStudio
