"""Counts over many ratings, for plots: by day, and by version.

Owns what is asked of the covering indexes `ratings_days` and `listed_opinions`. Not here: what a share means (proxy).
"""

from __future__ import annotations

import time
from typing import Final

from store.reader import Reader
from store.records import Day, Verdicts

DAY: Final = 86400


async def days(reader: Reader, since: float, offset: float) -> list[Day]:
    """Live ratings by local day, oldest first; `offset` is what the local clock is ahead of UTC, in seconds."""
    rows = await reader.rows(
        """SELECT CAST((r.created_at + :offset) / 86400 AS INTEGER) AS day,
        sum(r.value > 0) AS good, sum(r.value < 0) AS bad, count(*) AS rated
        FROM ratings r WHERE r.live = 1 AND r.human = 1 AND r.created_at BETWEEN :since AND :until
        GROUP BY day ORDER BY day""",
        {"since": since, "until": time.time() + DAY, "offset": offset},
    )
    return [Day(row["day"] * DAY - offset, row["good"], row["bad"], row["rated"]) for row in rows]


async def verdicts(reader: Reader) -> list[Verdicts]:
    """By version: how many rated main turns people found good, and bad; one on which they cancel out is neither."""
    rows = await reader.rows(
        """SELECT l.version, sum(l.opinion > 0) AS good, sum(l.opinion < 0) AS bad FROM listed l
        WHERE l.rated > 0 AND l.version IS NOT NULL AND l.turn = 'main' GROUP BY l.version ORDER BY l.version"""
    )
    return [Verdicts(row["version"], row["good"], row["bad"]) for row in rows]
