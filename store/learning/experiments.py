"""Experiments on live traffic, the turns of the conversations that they drew, and the ratings of those.

Not here: which conversation gets which arm, when an experiment ends (proxy.versions).
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from store.captured.rows import from_json, to_json, to_record
from store.errors import ExperimentRuns
from store.file import meta
from store.file.part import StorePart
from store.learning.versions import WAITING
from store.line_records import COMMON

SALT_BYTES: Final = 16
# The first condition is what the unique index is over: by it the one that runs is found without a scan.
_RUNNING: Final = "SELECT * FROM experiments WHERE (ended_at IS NULL) AND ended_at IS NULL"
_RATINGS: Final = """SELECT t.conversation, t.is_candidate, r.value, r.human
FROM experiment_turns t CROSS JOIN ratings r ON r.completion_id = t.completion_id
WHERE t.experiment = ? AND +r.live = 1 ORDER BY r.seq"""
_ARMS: Final = "SELECT DISTINCT conversation, is_candidate FROM experiment_turns WHERE experiment = ?"


@dataclass(frozen=True, slots=True)
class Experiment:
    id: int
    version: int
    against: int
    share: float  # of conversations, in (0, 1), that get `version`
    salt: bytes
    actor: str
    started_at: float
    ended_at: float | None
    outcome: str | None
    reason: str | None
    figures: dict[str, Any] | None
    line: str = COMMON


class ExperimentRating(NamedTuple):
    """A live rating of a turn."""

    conversation: bytes
    is_candidate: bool
    value: float
    is_human: bool


def start(
    db: sqlite3.Connection, version: int, against: int, share: float, actor: str, line: str = COMMON
) -> Experiment:
    """Raises ExperimentRuns."""
    if (row := db.execute(_RUNNING).fetchone()) is not None:
        raise ExperimentRuns(row["version"])
    row = db.execute(
        """INSERT INTO experiments (version, against, share, salt, actor, started_at, line)
        VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING *""",
        (version, against, share, secrets.token_bytes(SALT_BYTES), actor, time.time(), line),
    ).fetchone()
    waiting = meta.of_line(WAITING, line)
    if meta.read_meta(db, waiting, None) == version:  # it has its turn now; whatever comes of it is the last word
        meta.set_meta(db, waiting, None)
    of_line = {} if line == COMMON else {"line": line}
    meta.audit(db, actor, "experiment", {"version": version, "against": against, "share": share} | of_line)
    return _experiment(row)


def end(db: sqlite3.Connection, id: int, outcome: str, reason: str, figures: dict[str, Any], actor: str) -> None:
    ended = db.execute(
        "UPDATE experiments SET ended_at = ?, outcome = ?, reason = ?, figures = ? WHERE id = ? AND ended_at IS NULL",
        (time.time(), outcome, reason, to_json(figures), id),
    )
    if ended.rowcount:
        meta.audit(db, actor, "experiment ended", {"experiment": id, "outcome": outcome, "reason": reason})


def _experiment(row: sqlite3.Row) -> Experiment:
    return to_record(Experiment, row, figures=from_json(row["figures"]))


class ExperimentStore(StorePart):
    async def start(self, version: int, against: int, share: float, actor: str, line: str = COMMON) -> Experiment:
        """Raises ExperimentRuns where one runs already."""
        return await self._writer.submit(lambda db: start(db, version, against, share, actor, line))

    async def end(self, id: int, outcome: str, reason: str, figures: dict[str, Any], actor: str) -> None:
        """One that has ended stays as it is."""
        await self._writer.submit(lambda db: end(db, id, outcome, reason, figures, actor))

    async def running(self) -> Experiment | None:
        row = await self._reader.row(_RUNNING)
        return None if row is None else _experiment(row)

    async def recent(self, limit: int = 20) -> list[Experiment]:
        """Newest first."""
        return [
            _experiment(row)
            for row in await self._reader.rows("SELECT * FROM experiments ORDER BY id DESC LIMIT ?", (limit,))
        ]

    async def arms(self, id: int) -> dict[bytes, bool]:
        """Conversations with captured turns, and whether each got the candidate."""
        return {row["conversation"]: bool(row["is_candidate"]) for row in await self._reader.rows(_ARMS, (id,))}

    async def ratings(self, id: int) -> list[ExperimentRating]:
        """Live ratings of its turns, oldest first."""
        return [
            ExperimentRating(row["conversation"], bool(row["is_candidate"]), row["value"], bool(row["human"]))
            for row in await self._reader.rows(_RATINGS, (id,))
        ]
