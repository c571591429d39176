"""Acts of an admin: train, pause, resume, cancel, rollback, promote, reset. By HTTP, on the page and in the chat.

Owns what each act does and the sentence that tells of it. Not here: who is an admin (access.keys).
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal, NamedTuple

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from proxy.core.errors import Conflict, NotFound, ProxyError, StorageFailed
from proxy.core.tasks import Tasks
from proxy.core.version_names import version_in_words
from proxy.training.run_supervisor import RunSupervisor
from proxy.versions.live_version import LiveVersion
from store.errors import StoreError
from store.line_records import COMMON, Pointer
from store.records import BASE
from store.store import Store

log = structlog.get_logger()

ACTS: Final = ("train", "pause", "resume", "cancel", "rollback", "promote", "reset")
CHANGES_POINTER: Final = frozenset({"rollback", "promote"})  # which has a line of its own in the audit log
BY_LEARNER: Final = frozenset({"train", "cancel"})  # of several relays only the one that learns can
OF_A_LINE: Final = frozenset({"train", "rollback", "promote", "reset"})
IN_CHAT: Final = frozenset({"train", "pause", "resume", "rollback", "reset"})


class PointerBody(TypedDict):
    live: Annotated[int, Field(ge=0)]
    previous: Annotated[int, Field(ge=0)]
    reason: str


class Started(TypedDict):
    started: Literal[True]
    why: str


class Paused(TypedDict):
    paused: bool


class Cancelled(TypedDict):
    cancelled: Annotated[int, Field(description="The run's number.")]


class Reset(TypedDict):
    live: Annotated[int, Field(ge=0)]
    baseline: float


class ActResult(NamedTuple):
    text: str  # for the chat
    body: PointerBody | Started | Paused | Cancelled | Reset  # for a program
    status: int = 200


class AdminActs:
    def __init__(self, store: Store, learner: RunSupervisor, live_version: LiveVersion, tasks: Tasks) -> None:
        self._store = store
        self._learner = learner
        self._live_version = live_version
        self._tasks = tasks

    async def do(
        self, act: str, actor: str, version: int | None = None, *, tune: bool = False, line: str | None = None
    ) -> ActResult:
        """Act to the end, also where the client hangs up first. `version`: for `promote`, and where a rollback is to
        go. `tune`: for `train`. `line`: None is the version's own, else the common one. Raises ProxyError, NotFound
        for another act."""
        task = self._tasks.spawn(f"act-{act}", self._outcome(act, actor, version, tune, line))
        try:
            outcome: ActResult | ProxyError = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_outcome)
            raise
        if isinstance(outcome, ProxyError):
            raise outcome
        return outcome

    async def _outcome(
        self, act: str, actor: str, version: int | None, tune: bool, line: str | None
    ) -> ActResult | ProxyError:
        """A refusal is for the client; the task itself did what it should."""
        try:
            result = await self._act(act, actor, version, tune, await self._line(version, line))
        except ProxyError as error:
            return error
        if act not in CHANGES_POINTER:
            try:
                await self._store.meta.audit(actor, act, _detail(result, tune, line))
            except StoreError as error:
                return StorageFailed(f"It is done ({result.text}), but not in the audit log: {error}")
        return result

    async def _line(self, version: int | None, line: str | None) -> str:
        """Raises NotFound."""
        if line is None and version:
            adapter = await self._store.versions.get(version)
            line = None if adapter is None else adapter.line
        line = line or COMMON
        self._live_version.pointer_of(line)
        return line

    async def _act(self, act: str, actor: str, version: int | None, tune: bool, line: str) -> ActResult:
        if act in BY_LEARNER and not self._store.is_learner:
            raise Conflict("Another relay of this database trains, and nothing was changed: say this to that one.")
        match act:
            case "train":
                reason = (await self._learner.train(tune=tune, line=line)).reason
                return ActResult(f"a run starts: {reason}.", Started(started=True, why=reason), 202)
            case "pause":
                await self._learner.pause()
                return ActResult("training is paused; `/rl resume` goes on.", Paused(paused=True))
            case "resume":
                await self._learner.resume()
                return ActResult("training goes on.", Paused(paused=False))
            case "cancel":
                run = await self._learner.cancel()
                return ActResult(
                    f"run {run.id} is cancelled; its ratings are fresh again.", Cancelled(cancelled=run.id)
                )
            case "rollback":
                if version is None:
                    return _live(await self._live_version.rollback(actor, line), "is live again", line)
                pointer = await self._live_version.to(version, "rollback to the base", actor, line=line)
                return _live(pointer, "is live again", line)
            case "promote" if version is not None:
                pointer = await self._live_version.to(version, "promoted by hand", actor, line=line)
                return _live(pointer, "is live", line)
            case "reset":
                await self._learner.reset(actor, line)
                text = "the base model answers, and the next run starts from it; nothing is deleted."
                return ActResult(text, Reset(live=BASE, baseline=0.0))
        raise NotFound(f"There is no act {act}.")


def _detail(result: ActResult, tune: bool, line: str | None) -> dict[str, Any]:
    detail: dict[str, Any] = {name: value for name, value in result.body.items() if name in ("why", "cancelled")}
    return detail | ({"tune": True} if tune else {}) | ({"line": line} if line else {})


def _log_outcome(task: asyncio.Task[ActResult | ProxyError]) -> None:
    """Log an act whose client has hung up: nobody else is told."""
    if task.cancelled() or task.exception() is not None:
        return  # the tasks log that themselves
    outcome = task.result()
    if isinstance(outcome, ProxyError):
        log.warning("an act was refused after its client had hung up", act=task.get_name(), reason=outcome.message)
    else:
        log.info("an act was done after its client had hung up", act=task.get_name(), outcome=outcome.text)


def _live(pointer: Pointer, how: str, line: str) -> ActResult:
    body = PointerBody(live=pointer.live, previous=pointer.previous, reason=pointer.reason)
    place = "" if line == COMMON else f" in the line {line}"
    return ActResult(f"{version_in_words(pointer.live)} {how}{place}.", body)
