"""Forgetting, from a person's word to the last file: rows, words of the search, samples in run folders.

Owns the order. The rows go in one transaction that also writes down what the run folders owe. Then the files go, which
a crash in between leaves to the next start. Last come the copies of the database that hold it, where they are to go as
well. After a crash before that, they are found again when asked again. Which versions were trained on it is said; that
they go and others take their place is `rebuild`. Not here: which rows go (store.forgetting.forget), the files
(run_files), the page's words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import structlog
from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.checks import answers, results
from proxy.core.errors import BadRequest, Conflict, NotFound
from proxy.core.json_response import json_object, json_response
from proxy.core.wrapped_ids import unwrap_id
from proxy.feedback.unconfirmed_fixes import UnconfirmedFixes
from proxy.relay.lessons import PromptLessons
from proxy.training.run_files import RunFiles
from proxy.training.unlearning import RebuildBody, Unlearning
from proxy.versions.services import Services
from proxy.web.openapi.responses import ForgottenBody
from store.errors import InOpenRun
from store.forgetting import backup_scan as copies
from store.forgetting.backup_scan import BackupScan
from store.records import Forgetting, Target

log = structlog.get_logger()

TARGETS: Final = get_args(Target)


class ForgetRequest(NamedTuple):
    kind: Target
    name: str
    retrain: bool = False  # what learned from it goes, too, and others are trained without it
    purge: bool = False  # copies of the database that hold it go, whole


class ForgottenCount(NamedTuple):
    """Counts of deleted data, done or to come."""

    forgetting: Forgetting
    copies: BackupScan  # of the database, as they were before
    purged: bool = False
    rebuild: RebuildBody | None = None  # as in `status`


class Forgetter:
    def __init__(
        self,
        services: Services,
        files: RunFiles,
        unlearning: Unlearning,
        unconfirmed: UnconfirmedFixes,
        lessons: PromptLessons | None,
    ) -> None:
        self._store = services.store
        self._home = services.settings.home
        self._recent = services.recent
        self._retries = services.retries
        self._files = files
        self._unlearning = unlearning
        self._unconfirmed = unconfirmed
        self._lessons = lessons

    async def look(self, kind: Target, name: str) -> ForgottenCount:
        """Count what would go. Raises NotFound where there is nothing of that name, in copies neither."""
        counts = await self._store.erasure.look(kind, name)
        copies = await self._store.erasure.copies_with(self._home, kind, name)
        if not (counts.completions or counts.ratings or counts.reactions or copies.holding):
            raise NotFound(f"There is no {kind} {name} here, so there is nothing to forget.", param=kind)
        return ForgottenCount(
            counts, BackupScan(*(tuple(self._path_in_home(file) for file in files) for files in copies))
        )

    async def forget(self, forget_request: ForgetRequest, actor: str) -> ForgottenCount:
        """Raises NotFound, Conflict where a run under way trains on it, StoreError."""
        if forget_request.purge and (doubt := self._store.integrity.doubt) is not None:
            raise Conflict(f"Nothing was forgotten, since copies may be needed: {doubt}. Ask again when that is over.")
        async with self._files.lock:
            preview = await self.look(forget_request.kind, forget_request.name)
            try:
                await self._files.refuse_if_trained_on(preview.forgetting)
                forgetting = await self._store.erasure.forget(
                    forget_request.kind, forget_request.name, actor, retrain=forget_request.retrain
                )
            except InOpenRun as error:
                raise Conflict(str(error)) from None
            self._drop_from_memory(forgetting.completions)
            await self._files.settle()
            await asyncio.to_thread(_forget_checks, self._home, forgetting.completions)
        await self._files.overwrite()
        log.info(
            "forgotten",
            what=forget_request.kind,
            completions=len(forgetting.completions),
            ratings=len(forgetting.ratings),
        )
        if forget_request.purge:
            await asyncio.to_thread(copies.delete, (self._home / file for file in preview.copies.holding))
        rebuild = None
        if forget_request.retrain and forgetting.trained and await self._unlearning.begin() is not None:
            rebuild = await self._unlearning.report()
        return ForgottenCount(forgetting, preview.copies, forget_request.purge, rebuild)

    async def delete(self, id: str) -> None:
        """One completion, because its client says so. Raises Conflict where a run under way trains on it."""
        async with self._files.lock:
            try:
                await self._files.refuse_if_trained_on(await self._store.erasure.look("completion", id))
                await self._store.erasure.delete(id)
            except InOpenRun as error:
                raise Conflict(str(error)) from None
            self._drop_from_memory([id])
            await self._files.settle()
            await asyncio.to_thread(_forget_checks, self._home, [id])

    def _drop_from_memory(self, completions: Iterable[str]) -> None:
        self._unconfirmed.clear()
        if self._lessons is not None:
            self._lessons.changed()
        self._recent.clear()  # whoever they were of: it costs a moment at the next swap
        self._retries.forget(set(completions))

    def _path_in_home(self, file: Path) -> Path:
        return file.relative_to(self._home)

    # /rl/forget

    async def post(self, request: web.Request) -> web.Response:
        require_admin(request)
        body = await json_object(request)
        kind, name = target(body)
        forget_request = ForgetRequest(kind, name, retrain=_flag(body, "retrain"), purge=_flag(body, "purge_backups"))
        if _flag(body, "dry_run"):
            return json_response(as_json(await self.look(kind, name), forgotten=False))
        return json_response(as_json(await self.forget(forget_request, actor_of(request)), forgotten=True))


def _forget_checks(home: Path, completions: Sequence[str]) -> None:
    """Delete what the user's own checks kept of them: answers to their prompts, and results that name them."""
    answers.forget(home, completions)
    results.forget(home, completions)


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"`{name}` must be true or false.", param=name)
    return value


def target(body: dict[str, Any]) -> tuple[Target, str]:
    """Exactly one of the four. Raises BadRequest."""
    targets = [(kind, body[kind]) for kind in TARGETS if body.get(kind)]
    if len(targets) != 1 or not isinstance(targets[0][1], str):
        raise BadRequest("Say what to forget: one of `completion`, `session`, `user` or `rater`, with its name.")
    kind, name = targets[0]
    return kind, unwrap_id(name) if kind == "completion" else name


def as_json(count: ForgottenCount, *, forgotten: bool) -> ForgottenBody:
    forgetting = count.forgetting
    return {
        "completions": len(forgetting.completions),
        "ratings": len(forgetting.ratings),
        "reactions": forgetting.reactions,
        "trained": list(forgetting.trained),
        "heirs": list(forgetting.heirs),
        "backups": {
            "holding": [str(file) for file in count.copies.holding],
            "unread": [str(file) for file in count.copies.unread],
            "deleted": count.purged,
        },
        "rebuild": count.rebuild,
        "forgotten": forgotten,
    }
