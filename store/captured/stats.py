"""Counts over many ratings, for plots: by day, and by version.

Owns what is asked of the covering indexes `ratings_days` and `listed_opinions`. Not here: what a share means (proxy).
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final, cast

from typing_extensions import TypedDict

from store.captured.completions import ROLLOUTS
from store.file.part import StorePart
from store.records import Day, Verdicts

DAY: Final = 86400
# The plus keeps SQLite from walking over all that are done for those of today.
COUNTS: Final = f"""SELECT
(SELECT count(*) FROM completions c WHERE c.status = 'pending') AS pending,
(SELECT count(*) FROM completions c WHERE c.status = 'done')
    - (SELECT count(*) FROM completions c WHERE c.key = '{ROLLOUTS}') AS done,
(SELECT count(*) FROM completions c WHERE c.status = 'partial') AS partial,
(SELECT count(*) FROM completions c WHERE c.status = 'error') AS error,
(SELECT count(*) FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.value > 0) AS good,
(SELECT count(*) FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.value < 0) AS bad,
(SELECT count(*) FROM completions c WHERE +c.status = 'done' AND c.created_at >= :midnight)
    - (SELECT count(*) FROM completions c WHERE c.key = '{ROLLOUTS}' AND +c.created_at >= :midnight)
    AS captured_today"""  # noqa: S608  ours


class Counts(TypedDict):
    pending: int
    done: int
    partial: int
    error: int
    good: int
    bad: int
    captured_today: int


class SamePromptCount(TypedDict):
    """A version and the base on the same prompts."""

    version: int
    prompts: int
    base_liked: int
    liked: int
    better: int
    worse: int


class StatStore(StorePart):
    async def days(self, since: float, offset: float, span_s: float = DAY) -> list[Day]:
        """Live ratings by local day, or by another span, oldest first. `offset`: seconds that the local clock is ahead
        of UTC."""
        rows = await self._reader.rows(
            """SELECT CAST((r.created_at + :offset) / :span AS INTEGER) AS day,
            sum(r.value > 0) AS good, sum(r.value < 0) AS bad, count(*) AS rated
            FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.created_at BETWEEN :since AND :until
            GROUP BY day ORDER BY day""",
            {"since": since, "until": time.time() + DAY, "offset": offset, "span": span_s},
        )
        return [Day(row["day"] * span_s - offset, row["good"], row["bad"], row["rated"]) for row in rows]

    async def verdicts(self) -> list[Verdicts]:
        """By version: how many rated main turns people found good, and bad; one on which they cancel out is neither."""
        rows = await self._reader.rows(
            """SELECT l.version, sum(l.opinion > 0) AS good, sum(l.opinion < 0) AS bad FROM listed l
            WHERE l.rated > 0 AND l.version IS NOT NULL AND l.turn = 'main' GROUP BY l.version ORDER BY l.version"""
        )
        return [Verdicts(row["version"], row["good"], row["bad"]) for row in rows]

    async def same_prompts(self) -> list[SamePromptCount]:
        """Count, for each version but the base, the prompts of which people rated an answer of both. An
        answer that several rated, and several answers to one prompt, count by their mean. The base is that of the
        version: another one has another name."""
        rows = await self._reader.rows(
            """WITH votes AS (SELECT c.prompt_hash AS prompt, c.version AS version, avg(r.value) > 0 AS liked,
                iif(c.version = 0, c.served_model, substr(c.served_model, 1, instr(c.served_model || '@v', '@v') - 1))
                AS base
                FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id
                WHERE r.live = 1 AND r.human = 1 AND r.value <> 0 AND c.prompt_hash IS NOT NULL
                AND c.version IS NOT NULL GROUP BY 1, 2, 4)
            SELECT v.version, count(*) AS prompts, sum(o.liked) AS base_liked, sum(v.liked) AS liked,
            sum(v.liked > o.liked) AS better, sum(v.liked < o.liked) AS worse
            FROM votes v JOIN votes o ON o.prompt = v.prompt AND o.version = 0 AND o.base = v.base
            WHERE v.version > 0
            GROUP BY v.version ORDER BY v.version"""
        )
        return [cast(SamePromptCount, dict(row)) for row in rows]

    async def ratings_before(self, timestamp: float) -> int:
        """Ratings that people had given by then, Unix seconds, and that stand."""
        row = await self._reader.row(
            "SELECT count(*) AS count FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.created_at < ?",
            (timestamp,),
        )
        assert row is not None
        return int(row["count"])

    async def counts(self) -> Counts:
        """Completions by status, live ratings by sign, and what was captured since midnight; without rollouts."""
        midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
        row = await self._reader.row(COUNTS, {"midnight": midnight.timestamp()})
        assert row is not None
        return cast(Counts, dict(row))
