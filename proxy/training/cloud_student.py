"""A local model learns from the rated replies of a cloud API, which answers.

Owns what differs from training the model that answers: the objective, and which adapter a run goes on from. It also
says what an adapter is good for that no backend serves. Such replies belong to no version, and only they train here.
Not here: when a run starts (schedule_rules), the mathematics (trainer), serving once a backend of the local model is
there (live_version).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from config.settings import Settings
from proxy.core.events import Events
from store.learning.unlearning import clean_of
from store.records import BASE, Adapter
from store.store import Store

log = structlog.get_logger()

OBJECTIVE: Final = "kto"  # needs neither log-probs nor a version of the model that replied
LISTENING: Final = "distill"  # nor does this: only comments and corrections teach
NEWEST: Final = "foreign_version"  # in the store: what the last of these runs published, or is about to


class StudentModel(TypedDict):
    """Behind a cloud API it is a local model that learns."""

    model: str | None
    weights: str | None
    objective: str
    version: Annotated[int, Field(ge=0)] | None
    adapter: str | None
    line: str


class CloudStudent:
    def __init__(self, settings: Settings, store: Store, events: Events) -> None:
        self._settings = settings
        self._store = store
        self._events = events

    @property
    def objective(self) -> str:
        return str(self._settings.train.overrides.get("objective", OBJECTIVE))

    @property
    def model(self) -> str:
        """The local model, as its folder of adapters is called."""
        return Path(self._settings.train.weights).name

    @property
    def choices(self) -> list[dict[str, Any]]:
        reason = "another model gave these replies: the model that trains has no log-probs of its own to compare with"
        return [{"name": "objective", "value": self.objective, "why": reason}]

    def lacks(self) -> str | None:
        """Why nothing can train; None where it can."""
        if not self._settings.train.weights:
            return "replies are captured and rated only; train.weights may name a local model that learns from them"
        if self.objective not in (OBJECTIVE, LISTENING):
            return (
                f"train.overrides has objective {self.objective}, which compares replies with the model that trains, "
                f"and another one gave them; leave it out ({OBJECTIVE}), or take {LISTENING}"
            )
        return None

    async def parent(self) -> int:
        """The version that the next run goes on from."""
        version = int(await self._store.meta.get(NEWEST, BASE))
        adapter = await self._store.versions.get(version) if version else None
        ours = adapter is not None and adapter.model == self.model and adapter.withdrawn is None
        return version if ours else BASE

    async def publishes(self, version: int) -> None:
        """Before it is on record: a version that this module does not know of would go live behind another backend."""
        await self._store.meta.set(NEWEST, version)

    async def published(self, version: int) -> None:
        log.info("version published", version=version, why="the backend does not serve it")
        self._events.emit("published", version=version, line=await self._line())

    async def reset(self, actor: str) -> None:
        """The next run starts from the local model as it is."""
        if version := await self.parent():
            await self._store.versions.withdraw(version, "reset", actor)

    async def step_back(self, adapters: Iterable[Adapter]) -> None:
        """Where the newest learned from what was forgotten, the next run starts from the one before that did not."""
        version = int(await self._store.meta.get(NEWEST, BASE))
        if (to := clean_of(adapters, version)) != version:
            await self._store.meta.set(NEWEST, to)

    async def report(self) -> StudentModel:
        """For `status`: which model trains, and where what it learned is."""
        version = await self.parent()
        adapter = await self._store.versions.get(version) if version else None
        return {
            "model": self.model or None,
            "weights": self._settings.train.weights or None,
            "objective": self.objective,
            "version": version or None,
            "adapter": adapter.path if adapter else None,
            "line": await self._line(),
        }

    async def _line(self) -> str:
        version = await self.parent()
        if (lacks := self.lacks()) is not None:
            return f"nothing: {lacks}"
        if (adapter := await self._store.versions.get(version) if version else None) is None:
            return f"{self.model} learns from these replies ({self.objective}); no version of it yet"
        return (
            f"{self.model} v{version}, in {adapter.path}; this backend cannot serve it: `rlproxy serve --backend "
            f"builtin --weights {self._settings.train.weights}` in its place, then `rlproxy promote v{version}`"
        )
