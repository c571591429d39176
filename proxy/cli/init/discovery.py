"""Which model servers run on this machine, and what they say of their models.

Owns the ports that are tried and how a server is recognised: by routes of its own, never by its port. Everything is
asked with GET but Ollama's `/api/show`, which is a POST that changes nothing. Not here: which weights a model was
made from (weights_search), what the person chooses (questions).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from proxy.backends import modelfile
from proxy.backends.gguf_head import NoGguf, read_head
from proxy.backends.model_files import ModelFolders
from proxy.cli.init import commands
from proxy.core.errors import BackendBroke
from proxy.core.json_edit import loads
from proxy.core.redirects import refuse_all
from proxy.core.server_url import base_url, route_url
from proxy.core.upstream import body_of

PORTS: Final = (11434, 8000, 1234, 8080, 30000)  # Ollama, vLLM, LM Studio, llama.cpp and MLX, SGLang
MOST_BYTES: Final = 1 << 25  # of an answer
ASK_S: Final = 2.0  # loopback: what takes longer is stuck, or loading a model
OWN_API: Final = ("ollama", "lmstudio")  # people add its /api to the address; a cloud's address may end so, too
_is_blob: Final = re.compile(r"/[^\0]+/blobs/sha256-[0-9a-f]{64}").fullmatch
OWNERS: Final = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}  # as their model lists say


@dataclass(frozen=True, slots=True)
class ListedModel:
    name: str
    window: int | None = None  # tokens it takes, where the server tells
    root: str | None = None  # the folder or hub id that was loaded, where the server tells
    size: int | None = None  # bytes of its file, where the server tells


@dataclass(frozen=True, slots=True)
class DiscoveredServer:
    kind: str  # as backend.kind
    url: str  # as proxy.core.server_url keeps it
    models: tuple[ListedModel, ...] = ()
    version: str = ""
    presets: str = ""  # backend.presets: of a llama-server that is a router
    note: str = ""  # what a person has to do or know first
    about: Mapping[str, Any] = field(default_factory=dict)  # of the server, as it tells


class ServerProbe:
    """GET at one server: (status, JSON or None, headers). Never raises: what does not answer is (0, None, {})."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None) -> None:
        self._http, self.url = http, url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def get(self, path: str) -> tuple[int, Any, Mapping[str, str]]:
        return await self.ask("GET", path)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Mapping[str, str]]:
        timeout, url = aiohttp.ClientTimeout(total=ASK_S), route_url(self.url, path)
        try:
            async with self._http.request(method, url, headers=self._headers, json=body, timeout=timeout) as response:
                raw, status, headers = await body_of(response, MOST_BYTES), response.status, response.headers
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, BackendBroke):
            return 0, None, {}
        try:
            return status, loads(raw), headers
        except ValueError:
            return status, None, headers

    async def table(self, path: str) -> dict[str, Any]:
        """Ask a route of the server's own; empty where it has no such route."""
        status, answer, _ = await self.get(path)
        return answer if status == 200 and isinstance(answer, dict) and "error" not in answer else {}


async def look(urls: Iterable[str], keys: Mapping[str, str] = MappingProxyType({})) -> list[DiscoveredServer]:
    """The servers that answer at these addresses, in their order, all asked at once; `keys` by plain address.

    Who listens on a port is known only once it answers, so none is sent a key that is another's.
    """
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        unique = dict.fromkeys(plain(url) for url in urls)
        servers = await asyncio.gather(*(_probe(http, url, keys) for url in unique))
    return [server for server in servers if server is not None]


async def _probe(http: aiohttp.ClientSession, url: str, keys: Mapping[str, str]) -> DiscoveredServer | None:
    root = url.removesuffix("/v1").removesuffix("/api")
    server = await recognise(ServerProbe(http, root, keys.get(root))) if root != url else None
    if server and server.kind in OWN_API:
        return server
    server = await recognise(ServerProbe(http, url, keys.get(url)))
    with_version = base_url(url, is_root=True)
    if server is None and with_version != url:  # a path that lacks `/v1` at its end
        server = await recognise(ServerProbe(http, with_version, keys.get(url)))
    return server


def loopback(ports: Iterable[int] = PORTS) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]


def plain(url: str, kind: str | None = None) -> str:
    """The address as the settings have it, without what the server's kind adds by itself."""
    url = url if "://" in url else f"http://{url}"
    url = url.replace("//0.0.0.0", "//127.0.0.1")  # where a server listens, not where it is asked
    url = url.rstrip("/")
    if kind in OWN_API:
        url = url.removesuffix("/v1").removesuffix("/api")
    return base_url(url, is_root=kind not in (None, "openai"))


async def recognise(probe: ServerProbe) -> DiscoveredServer | None:
    status, listing, headers = await probe.get("/v1/models")
    if status == 0:
        return None
    if await probe.table("/healthz") == {"ok": True}:
        return None  # an rlproxy: what it lists is another server's
    entries = [m for m in _list(listing, "data") if isinstance(m, dict) and m.get("id")]
    owners = {OWNERS[o] for m in entries if (o := str(m.get("owned_by"))) in OWNERS}
    if status in (401, 403):
        note = f"it wants a key: start init again with RLPROXY_BACKEND__API_KEY and RLPROXY_BACKEND__URL={probe.url}"
        return DiscoveredServer(await _by_open_routes(probe), probe.url, note=note)
    if version := (await probe.table("/api/version")).get("version"):
        return await _ollama(probe, str(version))
    if (server := await _lmstudio(probe)) is not None:
        return server
    models = tuple(_model(m) for m in entries if not m.get("parent"))
    if "llamacpp" in owners or _is_llama(await probe.table("/props")):
        return await asyncio.to_thread(_llamacpp, probe.url, models, await probe.table("/props"))
    if "vllm" in owners:
        return DiscoveredServer("vllm", probe.url, models, str((await probe.table("/version")).get("version") or ""))
    if "sglang" in owners or "model_path" in await probe.table("/get_model_info"):
        return DiscoveredServer("sglang", probe.url, models)
    if str(headers.get("server", "")).startswith("BaseHTTP/") and await probe.table("/health") == {"status": "ok"}:
        return await asyncio.to_thread(_mlx, probe.url)
    if status == 200 and entries:
        return DiscoveredServer(
            "openai", probe.url, models, note="a server that I do not know: captured and rated only"
        )
    return None


async def _by_open_routes(probe: ServerProbe) -> str:
    """The kind of a server whose model list wants a key. vLLM guards only what is under /v1."""
    if (await probe.table("/version")).get("version"):
        return "vllm"
    return "llamacpp" if (await probe.table("/health")) == {"status": "ok"} else "openai"


async def _ollama(probe: ServerProbe, version: str) -> DiscoveredServer:
    tags = _list(await probe.table("/api/tags"), "models")
    entries = [(str(m["name"]), m) for m in tags if isinstance(m, dict) and m.get("name") and not _embeds(m)]
    models = tuple(
        ListedModel(name.removesuffix(":latest"), size=_size(entry, "size"))
        for name, entry in entries
        if "-rl:v" not in name  # those are ours
    )
    return DiscoveredServer(
        "ollama", probe.url, models, version, "" if models else "it has no model yet: `ollama pull` one"
    )


def _embeds(entry: Mapping[str, Any]) -> bool:
    families = (entry.get("details") or {}).get("families") or ()
    return any("bert" in str(family) for family in families)


async def _lmstudio(probe: ServerProbe) -> DiscoveredServer | None:
    entries = _list(await probe.table("/api/v1/models"), "models")
    if any(isinstance(m, dict) and "loaded_instances" in m for m in entries):
        usable_entries = [m for m in entries if m.get("type") == "llm" and m.get("publisher") != "rlproxy"]
        usable_entries.sort(key=lambda m: not m["loaded_instances"])  # what is loaded comes first
        models = tuple(
            ListedModel(str(m["key"]), m.get("max_context_length"), size=_size(m, "size_bytes")) for m in usable_entries
        )
        return DiscoveredServer("lmstudio", probe.url, models, about={"models": usable_entries})
    _, unknown, _ = await probe.get("/api/v1/models")
    if isinstance(unknown, dict) and "Unexpected endpoint" in str(unknown.get("error")):
        return DiscoveredServer(
            "lmstudio", probe.url, note="it is too old for new versions (no REST API v1): update it"
        )
    return None


def _is_llama(props: Mapping[str, Any]) -> bool:
    return props.get("role") == "router" or "total_slots" in props


def _llamacpp(url: str, models: tuple[ListedModel, ...], props: Mapping[str, Any]) -> DiscoveredServer:
    if props.get("role") != "router":
        note = "a plain server: a new version waits for its restart; better as a router (docs/reference/backends.md)"
        return DiscoveredServer("llamacpp", url, models, note=note, about=props)
    presets = commands.option(url, "llama-server", "--models-preset")
    if presets and Path(presets).is_absolute():
        return DiscoveredServer("llamacpp", url, models, about=props, presets=presets)
    note = "a router: name its --models-preset file in backend.presets, so that versions can go in"
    return DiscoveredServer("llamacpp", url, models, note=note, about=props)


def _mlx(url: str) -> DiscoveredServer:
    """Its list is of whatever is on the disk; which of them it serves stands in its command line only."""
    if (model := commands.option(url, "mlx_lm", "--model")) is not None:
        return DiscoveredServer("mlx", url, (ListedModel(model),))
    return DiscoveredServer(
        "mlx", url, note="it does not tell its model; say which one it was started with, as in --answers"
    )


def _model(entry: Mapping[str, Any]) -> ListedModel:
    meta = entry.get("meta") if isinstance(entry.get("meta"), dict) else {}
    window = entry.get("max_model_len") or (meta or {}).get("n_ctx")
    root = entry.get("root")
    return ListedModel(
        str(entry["id"]),
        window if isinstance(window, int) else None,
        root if isinstance(root, str) else None,
        _size(meta or {}, "size"),
    )


def _size(entry: Mapping[str, Any], member: str) -> int | None:
    size = entry.get(member)
    return size if isinstance(size, int) and size > 0 else None


def _list(answer: Any, key: str) -> list[Any]:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, list) else []


# What a server tells of one model, in the words of GGUF (`general.name`, `llama.embedding_length`, …)


class ModelFacts(NamedTuple):
    about: Mapping[str, Any] = MappingProxyType({})  # empty where nothing is told and no file is here
    file: Path | None = None  # on this machine, where we may read it
    context: int | None = None  # Ollama's num_ctx, if the model has one
    unknown_folder: Path | None = None  # Ollama's folder of models, where files are not opened unless somebody agrees


async def model_facts(
    server: DiscoveredServer, model: str, models_dir: Path, folders: ModelFolders, key: str | None = None
) -> ModelFacts:
    """`models_dir`: of LM Studio; `folders`: below which a file that a server names is opened."""
    if server.kind != "ollama":
        file = await asyncio.to_thread(gguf_file, server, model, models_dir, folders)
        return ModelFacts(await asyncio.to_thread(_head, file), file)
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        _, answer, _ = await ServerProbe(http, server.url, key).ask("POST", "/api/show", {"model": model})
    details_body = answer if isinstance(answer, dict) else {}
    info, details = details_body.get("model_info"), details_body.get("details") or {}
    parsed = modelfile.parse(str(details_body.get("modelfile") or ""))
    model_path = parsed.files[0] if parsed.files and _is_here(server) else ""
    file = await asyncio.to_thread(_file, model_path, folders)
    head = await asyncio.to_thread(_head, file)  # Ollama leaves out the model's name and template
    about = {**head, **(info if isinstance(info, dict) else {}), "details": details}
    context = parsed.parameters.get("num_ctx")
    folder = None if file else await asyncio.to_thread(_unknown_folder, model_path, folders)
    return ModelFacts(about, file, context if isinstance(context, int) else None, folder)


def _head(file: Path | None) -> dict[str, Any]:
    try:
        return read_head(file) if file is not None else {}
    except NoGguf:
        return {}


def _is_here(server: DiscoveredServer) -> bool:
    return urlsplit(server.url).hostname in ("127.0.0.1", "localhost", "::1")


def _file(path: str, folders: ModelFolders) -> Path | None:
    """A file that a server names; None where none is there, or it is not below one of the folders."""
    try:
        file = folders.resolve(path)
        return file if file.is_file() else None
    except (OSError, ValueError):
        return None


def _unknown_folder(path: str, folders: ModelFolders) -> Path | None:
    """FOLDER, where Ollama names `FOLDER/blobs/sha256-…` and it is none of the folders. Nothing there is opened."""
    file = Path(path)
    if not _is_blob(path) or folders.holds(file) or not file.is_file():
        return None
    return Path(os.path.realpath(file.parent.parent))


def gguf_file(server: DiscoveredServer, model: str, models_dir: Path, folders: ModelFolders) -> Path | None:
    """The model's file, where the server says it or keeps it in a known folder of this machine. Blocking."""
    if not _is_here(server):
        return None
    if server.kind == "llamacpp" and (path := server.about.get("model_path")):
        typed = {commands.option(server.url, "llama-server", name) for name in ("-m", "--model")}
        if path in typed:  # whoever started it here has named the file, and the server only repeats it
            folders = ModelFolders([Path(str(path)).parent])
        return _file(str(path), folders)
    if server.kind == "lmstudio":
        entry: Mapping[str, Any] = next((m for m in server.about.get("models", ()) if m.get("key") == model), {})
        name = model.rpartition("/")[2].lower()
        files = [
            file
            for file in sorted((models_dir / str(entry.get("publisher") or "-")).glob("*/*.gguf"))
            if file.parent.name.lower().removesuffix("-gguf") == name and not file.name.startswith("mmproj")
        ]
        return files[0] if files else None
    return None
