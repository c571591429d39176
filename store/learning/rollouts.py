"""Rollouts: answers that rlproxy samples itself to captured prompts, for the user's own reward to compare.

Owns which prompt is next, and the one transaction that stores an answer. Each is a side turn under a key of its own,
and an episode of one turn: groups, rewards and runs are those of episodes. It goes with the completion whose prompt
it answers, and no list of people's answers has it. Not here: when they are sampled (proxy.relay.rollouts).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from store.captured import completions
from store.captured.completions import ROLLOUTS
from store.captured.recording import record
from store.file import meta
from store.file.part import StorePart
from store.learning.episodes import SELECT, Episode, NewEpisode, open_episode, to_episode
from store.records import Completion, FinishedCompletion, NewCompletion

LOOK: Final = 1000  # the newest main turns, among whose prompts the next one is
# An episode that a program uses for evaluation is not a task to train on. A prompt that several sent is one prompt.
_NEXT: Final = """SELECT c.id FROM (
    SELECT n.seq FROM completions n WHERE n.status = 'done' AND n.turn = 'main' ORDER BY n.seq DESC LIMIT :look) w
CROSS JOIN completions c ON c.seq = w.seq
WHERE +c.line = 'common' AND c.choice = 0 AND c.version IS NOT NULL AND c.untrainable IS NULL AND c.images = 0
AND c.redacted IS NULL AND c.prompt_hash IS NOT NULL AND c.dialect NOT IN ('completions', 'ollama-generate')
AND c.prompt_hash NOT IN (SELECT s.prompt_hash FROM json_each(:skipped) j CROSS JOIN completions s ON s.id = j.value
    WHERE s.prompt_hash IS NOT NULL)
AND NOT EXISTS (SELECT 1 FROM episodes v
    WHERE v.id = c.session AND v.key = coalesce(c.key, '') AND v.split = 'eval')
AND (SELECT count(*) + :size * total(r.ended_at IS NULL AND r.scored_by IS NOT NULL) FROM completions p
    CROSS JOIN episodes r ON r.prompt = p.id AND r.version = :version
    WHERE p.prompt_hash = c.prompt_hash) < :size
ORDER BY c.seq DESC LIMIT 1"""
UNDER_WAY_S: Final = 600.0  # after which an answer without an end is of a relay that is gone, or of the background
# An answer that is under way counts as asked now.
_NEWEST_QUESTION: Final = """SELECT max(asked.at) AS at FROM (
    SELECT * FROM (SELECT :now AS at FROM completions c WHERE c.status = 'pending' AND +c.created_at > :since LIMIT 1) p
    UNION ALL SELECT * FROM (SELECT c.finished_at AS at FROM completions c WHERE c.status = 'done' AND c.turn = 'main'
        ORDER BY c.seq DESC LIMIT 1) d) asked"""
_PROMPT: Final = "SELECT 1 FROM completions c WHERE c.id = ?"
_UNLIST: Final = "DELETE FROM listed WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = ?)"


class Spent(NamedTuple):
    """The cost of sampling on one day."""

    day: str  # local, as 2026-11-29
    tokens: int = 0  # of prompts and answers
    seconds: float = 0.0


class RolloutCounts(NamedTuple):
    answers: int
    prompts: int


@dataclass(frozen=True, slots=True)
class NewRollout:
    prompt: str  # the completion whose prompt it answers
    new: NewCompletion  # its session is the episode's id
    end: FinishedCompletion
    group: str
    group_size: int
    task: str | None  # of the episode that the prompt is of, where it is of one
    meta: Any
    spent: Spent


def keep(db: sqlite3.Connection, rollout: NewRollout) -> Episode | None:
    """Store the answer, its episode and what it took; None where its prompt was forgotten meanwhile."""
    add_spent(db, rollout.spent)
    if db.execute(_PROMPT, (rollout.prompt,)).fetchone() is None:
        return None
    new = rollout.new
    assert new.session is not None and new.key == ROLLOUTS
    record(db, [(new, rollout.end)])
    db.execute(_UNLIST, (new.id,))
    episode, _ = open_episode(
        db,
        NewEpisode(
            new.session, ROLLOUTS, new.version, rollout.task, rollout.group, rollout.group_size, meta=rollout.meta,
            line=new.line, prompt=rollout.prompt,
        ),
    )  # fmt: skip
    return episode


def add_spent(db: sqlite3.Connection, spent: Spent) -> None:
    previous = _spent(meta.read_meta(db, ROLLOUTS, None), spent.day)
    total = Spent(spent.day, previous.tokens + spent.tokens, previous.seconds + spent.seconds)
    meta.set_meta(db, ROLLOUTS, total._asdict())


def _spent(stored: Any, day: str) -> Spent:
    return Spent(**stored) if stored is not None and stored["day"] == day else Spent(day)


class RolloutStore(StorePart):
    async def next_prompt(self, version: int, size: int, skipped: Collection[str] = ()) -> Completion | None:
        """The newest main turn of the common line whose prompt has fewer than `size` answers of this version. Prompts
        of `skipped` are passed over, and those that the user's own code had no reward for."""
        skipped_ids = orjson.dumps(list(skipped)).decode()
        row = await self._reader.row(_NEXT, {"look": LOOK, "skipped": skipped_ids, "size": size, "version": version})
        return None if row is None else (await completions.load(self._reader, [row["id"]])).get(row["id"])

    async def of_prompt(self, prompt_hash: bytes, version: int) -> list[Episode]:
        """The answers of this version to a prompt, oldest first."""
        rows = await self._reader.rows(
            SELECT  # noqa: S608  ours
            + """WHERE e.prompt IN (SELECT p.id FROM completions p WHERE p.prompt_hash = ?) AND e.version = ?
            ORDER BY e.seq""",
            (prompt_hash, version),
        )
        return [to_episode(row) for row in rows]

    async def keep(self, rollout: NewRollout) -> Episode | None:
        """Do `keep` of this module."""
        return await self._writer.submit(lambda db: keep(db, rollout))

    async def add_spent(self, spent: Spent) -> None:
        """Count the cost of sampling beside what `keep` counts."""
        await self._writer.submit(lambda db: add_spent(db, spent))

    async def spent(self, day: str) -> Spent:
        return _spent(await meta.get_meta(self._reader, ROLLOUTS, None), day)

    async def last_asked(self) -> float:
        """When somebody was asked last, at whichever relay, Unix seconds; 0 where nobody ever was."""
        now = time.time()
        row = await self._reader.row(_NEWEST_QUESTION, {"now": now, "since": now - UNDER_WAY_S})
        return 0.0 if row is None or row["at"] is None else float(row["at"])

    async def counts(self) -> RolloutCounts:
        """How many answers there are, to how many prompts."""
        row = await self._reader.row(
            "SELECT count(*) AS answers, count(DISTINCT e.prompt) AS prompts FROM episodes e WHERE e.prompt IS NOT NULL"
        )
        assert row is not None
        return RolloutCounts(row["answers"], row["prompts"])
