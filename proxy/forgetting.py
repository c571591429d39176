"""Forgetting, from a person's word to the last file: rows, words of the search, samples in run folders.

Owns the order: the rows go in one transaction that also writes down what the run folders owe; then the files, which a
crash in between leaves to the next start. Adapters are not touched: which versions were trained on it is said, and a
person may roll them back. Not here: which rows go (store.forget), the page's words.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, get_args

import structlog
from aiohttp import web

from proxy import run_folder
from proxy.errors import BadRequest, Conflict, NotFound
from proxy.recent import Recent
from proxy.security import require_admin
from proxy.wire import loads
from store.errors import InOpenRun, StoreError
from store.records import Forgetting, Target
from store.store import Store

log = structlog.get_logger()

TARGETS: Final = get_args(Target)
EVERY_RUN: Final = 1_000_000  # all there are


class Forgetter:
    def __init__(self, store: Store, recent: Recent) -> None:
        self._store, self._recent = store, recent

    async def look(self, kind: Target, name: str) -> Forgetting:
        """What would go. Raises NotFound where there is nothing of that name."""
        found = await self._store.would_forget(kind, name)
        if not found.completions and not found.ratings:
            raise NotFound(f"There is no {kind} {name} here, so there is nothing to forget.", param=kind)
        return found

    async def forget(self, kind: Target, name: str, actor: str) -> Forgetting:
        """Raises NotFound, Conflict where a run under way trains on it, StoreError."""
        looked = await self.look(kind, name)
        for run in await self._store.open_runs():
            if await asyncio.to_thread(
                run_folder.trains_on, Path(run.folder), set(looked.completions), set(looked.ratings)
            ):
                raise Conflict(str(InOpenRun(run.id)))
        try:
            found = await self._store.forget_for_good(kind, name, actor)
        except InOpenRun as error:
            raise Conflict(str(error)) from None
        self._recent.clear()  # whoever they were of: it costs a moment at the next swap
        await self.settle()
        log.info("forgotten", what=kind, completions=len(found.completions), ratings=len(found.ratings))
        return found

    async def settle(self) -> int:
        """What run folders still have of what was forgotten, goes; how many samples."""
        owed = await self._store.owed_to_run_folders()
        if not owed["completions"] and not owed["ratings"]:
            return 0
        completions, ratings = set(owed["completions"]), set(owed["ratings"])
        gone = 0
        for run in await self._store.runs(limit=EVERY_RUN):
            gone += await asyncio.to_thread(run_folder.without, Path(run.folder), completions, ratings)
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
        kind, name = target(body if isinstance(body, dict) else {})
        if body.get("dry_run"):
            return web.json_response(as_json(await self.look(kind, name)) | {"forgotten": False})
        return web.json_response(as_json(await self.forget(kind, name, "admin")) | {"forgotten": True})


def target(body: dict[str, Any]) -> tuple[Target, str]:
    """Exactly one of the four. Raises BadRequest."""
    given = [(kind, body[kind]) for kind in TARGETS if body.get(kind)]
    if len(given) != 1 or not isinstance(given[0][1], str):
        raise BadRequest("Say what to forget: one of `completion`, `session`, `user` or `rater`, with its name.")
    return given[0]


def as_json(found: Forgetting) -> dict[str, Any]:
    return {
        "completions": len(found.completions),
        "ratings": len(found.ratings),
        "trained": list(found.trained),
        "heirs": list(found.heirs),
    }
