"""Counts over many ratings, for plots: by day, and by version.

Owns what is asked of the covering indexes `ratings_days` and `listed_opinions`. Not here: what a share means (proxy).
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final, cast

from typing_extensions import TypedDict

from store.file.part import StorePart
from store.records import Day, Verdicts

DAY: Final = 86400
# The plus keeps SQLite from walking over all that are done for those of today.
COUNTS: Final = """SELECT
(SELECT count(*) FROM completions c WHERE c.status = 'pending') AS pending,
(SELECT count(*) FROM completions c WHERE c.status = 'done') AS done,
(SELECT count(*) FROM completions c WHERE c.status = 'partial') AS partial,
(SELECT count(*) FROM completions c WHERE c.status = 'error') AS error,
(SELECT count(*) FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.value > 0) AS good,
(SELECT count(*) FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.value < 0) AS bad,
(SELECT count(*) FROM completions c WHERE +c.status = 'done' AND c.created_at >= ?) AS captured_today"""


class Counts(TypedDict):
    pending: int
    done: int
    partial: int
    error: int
    good: int
    bad: int
    captured_today: int


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

    async def counts(self) -> Counts:
        """Completions by status, live ratings by sign, and what was captured since midnight."""
        midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
        row = await self._reader.row(COUNTS, (midnight.timestamp(),))
        assert row is not None
        return cast(Counts, dict(row))
