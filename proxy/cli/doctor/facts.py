"""Facts for `rlproxy doctor`: asked once, of the running proxy over HTTP and of this machine.

Owns the asking; nothing is changed, and no lock is taken. Not here: what follows from it (checks, machine_checks).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import psutil

from config.settings import Settings
from proxy.cli import plan
from proxy.cli.agents import drift
from proxy.cli.http import HomeClient
from proxy.client import Refused, Unreachable
from proxy.core.address_file import owner
from proxy.training.system_load import Machine
from store.errors import StoreError
from store.file import driver, integrity, schema
from store.file.lock import NAME as LOCK
from store.store import sharing_module
from trainer.launch import Estimate, PriorityState, standing

State = Literal["ok", "note", "problem", "unknown"]
GB: Final = 2**30
CLOCK_S: Final = 60.0  # by which the clocks of processes and files may differ


class DoctorCheck(NamedTuple):
    """`note` is worth knowing and may be meant so; a `problem` keeps something from working."""

    name: str
    state: State
    line: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    settings: Settings
    url: str
    status: Mapping[str, Any] | None  # of /rl/status; None: the proxy does not answer, or not us
    unreachable_reason: str | None  # then why not
    answers: bool  # whether a proxy is there at all
    not_ready: str | None  # why the backend does not answer; None: it does
    models: tuple[str, ...] | None  # that the proxy offers; None too where they are not ours
    holder: int | None  # the process that holds the home folder
    owner: int | None  # the process that says it serves there
    free_gb: float  # of disk
    memory_gb: float | None = None  # free
    gpu_gb: float | None = None  # free on the GPU, where nvidia-smi tells it
    keys: Mapping[str, Any] | None = None  # as GET /rl/keys tells of them; None: not asked, or not told
    agents: tuple[drift.AgentConnection, ...] = ()
    database: Literal["none", "clear", "encrypted"] = "none"
    standing: PriorityState | None = None  # how far a run steps back
    damage: str | None = None  # what was found to be wrong with it, as the note beside it says
    shared: str | None = None  # the database of `store.url`, in a line
    shared_problem: str | None = None  # why it cannot be reached
    estimate: Estimate | None = None  # of a run; None where the weights are not here
    further: Mapping[str, str | None] = field(default_factory=dict)  # further models: why each does not answer


def gather(settings: Settings) -> DoctorFacts:
    client = HomeClient(settings)
    status, reason, answers, not_ready, models, keys = None, None, True, None, None, None
    try:
        status = client.ask("GET", "/rl/status")
        keys = _keys(client)
        try:
            client.ask("GET", "/readyz")
            if not status["backend"]["foreign"]:  # whose list may want a client's key, and has nothing of ours
                models = tuple(m["id"] for m in client.ask("GET", "/v1/models")["data"])
        except Refused as refused:
            not_ready = str(refused)
    except Refused as refused:
        reason = str(refused)
    except Unreachable as error:
        reason, answers = str(error), False
    asks_for_key = keys is not None and keys["needed"] and settings.server.api_key is None

    def is_rejected(key: str | None) -> bool:
        return asks_for_key and (key is None or not client.opens(key))

    free = shutil.disk_usage(_existing_folder(settings.home)).free / GB
    shared, shared_problem = _shared(settings)
    use = Machine(cpu=False, gpu=shutil.which("nvidia-smi") is not None).look(time.monotonic())
    return DoctorFacts(
        settings, client.url, status, reason, answers, not_ready, models, holder(settings.home), owner(settings), free,
        use.free_gb, use.gpu_free_gb, keys, drift.list_connections(settings.home, client.url, is_rejected),
        _form(settings.home),
        standing(settings.train.nice, owner(settings) or "self"),
        integrity.noted(settings.home / schema.NAME), shared, shared_problem,
        plan.estimate_here(settings, settings.train.weights),
        asyncio.run(_further_problems(settings)) if settings.models else {},
    )  # fmt: skip


async def _further_problems(settings: Settings) -> Mapping[str, str | None]:
    """Why each further model's server does not answer this machine; None where it does."""
    import aiohttp

    from proxy.backends.further_model import make_further_servers
    from proxy.core.redirects import refuse_all
    from proxy.web.status import reachable

    servers = make_further_servers(settings)
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as http:
        for server in servers.values():
            server.open(http)
        problems = await asyncio.gather(*(reachable(server) for server in servers.values()))
    return dict(zip(servers, problems, strict=True))


def _shared(settings: Settings) -> tuple[str | None, str | None]:
    """The database of `store.url` in a line, or why it cannot be reached; neither for SQLite."""
    if not settings.store.address:
        return None, None
    try:
        return sharing_module().outline(settings.store.address), None
    except StoreError as error:
        return None, str(error)


def _keys(client: HomeClient) -> Mapping[str, Any] | None:
    """They are told to an admin only."""
    try:
        state: Mapping[str, Any] = client.ask("GET", "/rl/keys")
    except Refused:
        return None
    return state


def _form(home: Path) -> Literal["none", "clear", "encrypted"]:
    path = home / schema.NAME
    try:
        return "none" if driver.is_new(path) else "clear" if driver.is_plain(path) else "encrypted"
    except OSError:
        return "none"


def holder(home: Path) -> int | None:
    """The process that took this home's lock and still runs. The kernel lets go of the lock of one that ended."""
    try:
        pid = int((home / LOCK).read_text().strip() or 0)
        locked_at = (home / LOCK).stat().st_mtime
        running = psutil.Process(pid).create_time() <= locked_at + CLOCK_S  # not a later one that got its number
    except (OSError, ValueError, psutil.Error):
        return None
    return pid if running else None


def _existing_folder(path: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path
