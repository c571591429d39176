"""Forgetting, from a person's word to the last file: rows, words of the search, samples in run folders.

Owns the order: the rows go in one transaction that also writes down what the run folders owe; then the files, which a
crash in between leaves to the next start; then, where they are to go as well, the copies of the database that hold it
(a crash before that: asked again, they are found again). Which versions were trained on it is said; that they go and
others take their place is `rebuild`. Not here: which rows go (store.forget), the page's words.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import structlog
from aiohttp import web

from proxy import run_folder
from proxy.errors import BadRequest, Conflict, NotFound
from proxy.rebuild import Rebuilding
from proxy.recent import Recent
from proxy.retries import Retries
from proxy.security import require_admin
from proxy.wire import loads
from store import copies
from store.copies import Copies
from store.errors import InOpenRun, StoreError
from store.records import Forgetting, Target
from store.store import Store
from trainer.launch import IN_THE_CLEAR, Seal

log = structlog.get_logger()

TARGETS: Final = get_args(Target)
EVERY_RUN: Final = 1_000_000  # all there are


class Asked(NamedTuple):
    kind: Target
    name: str
    retrain: bool = False  # what learned from it goes, too, and others are trained without it
    purge: bool = False  # copies of the database that hold it go, whole


class Gone(NamedTuple):
    """What goes, or has gone."""

    found: Forgetting
    copies: Copies  # of the database, as they were before
    purged: bool = False
    rebuild: dict[str, Any] | None = None  # as in `status`


class Forgetter:
    def __init__(self, store: Store, home: Path, rebuilding: Rebuilding, recent: Recent, retries: Retries) -> None:
        self._store = store
        self._home = home
        self._rebuilding = rebuilding
        self._recent = recent
        self._retries = retries

    async def look(self, kind: Target, name: str) -> Gone:
        """What would go. Raises NotFound where there is nothing of that name, in copies neither."""
        found = await self._store.would_forget(kind, name)
        there = await self._store.copies_with(self._home, kind, name)
        if not (found.completions or found.ratings or found.reactions or there.holding):
            raise NotFound(f"There is no {kind} {name} here, so there is nothing to forget.", param=kind)
        return Gone(found, Copies(*(tuple(self._shown(file) for file in files) for files in there)))

    async def forget(self, asked: Asked, actor: str) -> Gone:
        """Raises NotFound, Conflict where a run under way trains on it, StoreError."""
        looked = await self.look(asked.kind, asked.name)
        before = looked.found
        for run in await self._store.open_runs():
            seal = Seal(await self._store.known_run_key(run.id))
            if await asyncio.to_thread(
                run_folder.trains_on, Path(run.folder), set(before.completions), set(before.ratings), seal
            ):
                raise Conflict(str(InOpenRun(run.id)))
        try:
            found = await self._store.forget_for_good(asked.kind, asked.name, actor, retrain=asked.retrain)
        except InOpenRun as error:
            raise Conflict(str(error)) from None
        self._recent.clear()  # whoever they were of: it costs a moment at the next swap
        self._retries.forget(set(found.completions))
        await self.settle()
        log.info("forgotten", what=asked.kind, completions=len(found.completions), ratings=len(found.ratings))
        if asked.purge:
            await asyncio.to_thread(copies.delete, (self._home / file for file in looked.copies.holding))
        rebuild = None
        if asked.retrain and found.trained and await self._rebuilding.begin() is not None:
            rebuild = await self._rebuilding.report()
        return Gone(found, looked.copies, asked.purge, rebuild)

    def _shown(self, file: Path) -> Path:
        return file.relative_to(self._home)

    async def settle(self) -> int:
        """What run folders still have of what was forgotten, goes; how many samples."""
        owed = await self._store.owed_to_run_folders()
        if not owed["completions"] and not owed["ratings"]:
            return 0
        completions, ratings = set(owed["completions"]), set(owed["ratings"])
        gone = 0
        runs = await self._store.runs(limit=EVERY_RUN)
        folders = [(Path(run.folder), Seal(await self._store.known_run_key(run.id))) for run in runs]
        unknown = await asyncio.to_thread(run_folder.others, self._home / "runs", [run.folder for run in runs])
        for folder, seal in (*folders, *((folder, IN_THE_CLEAR) for folder in unknown)):
            gone += await asyncio.to_thread(run_folder.without, folder, completions, ratings, seal)
        if not await self._store.left_run_folders(owed):
            log.warning("what was forgotten is still in the database's log, until it is written over or rlproxy stops")
        return gone

    async def settle_at_start(self) -> None:
        try:
            await self.settle()
        except (OSError, StoreError, ValueError) as error:
            log.error("samples of what was forgotten are still in run folders", error=str(error))

    # /rl/forget

    async def post(self, request: web.Request) -> web.Response:
        require_admin(request)
        try:
            body = loads(await request.read())
        except ValueError as error:
            raise BadRequest(f"The body is not valid JSON ({error}).") from None
        body = body if isinstance(body, dict) else {}
        kind, name = target(body)
        asked = Asked(kind, name, retrain=_flag(body, "retrain"), purge=_flag(body, "purge_backups"))
        if _flag(body, "dry_run"):
            return web.json_response(as_json(await self.look(kind, name)) | {"forgotten": False})
        return web.json_response(as_json(await self.forget(asked, "admin")) | {"forgotten": True})


def _flag(body: dict[str, Any], name: str) -> bool:
    given = body.get(name, False)
    if not isinstance(given, bool):
        raise BadRequest(f"`{name}` must be true or false.", param=name)
    return given


def target(body: dict[str, Any]) -> tuple[Target, str]:
    """Exactly one of the four. Raises BadRequest."""
    given = [(kind, body[kind]) for kind in TARGETS if body.get(kind)]
    if len(given) != 1 or not isinstance(given[0][1], str):
        raise BadRequest("Say what to forget: one of `completion`, `session`, `user` or `rater`, with its name.")
    return given[0]


def as_json(gone: Gone) -> dict[str, Any]:
    found = gone.found
    return {
        "completions": len(found.completions),
        "ratings": len(found.ratings),
        "reactions": found.reactions,
        "trained": list(found.trained),
        "heirs": list(found.heirs),
        "backups": {
            "holding": [str(file) for file in gone.copies.holding],
            "unread": [str(file) for file in gone.copies.unread],
            "deleted": gone.purged,
        },
        "rebuild": gone.rebuild,
    }
