"""Answers that a person had asked for again, and went on from: better than the ones that they took the place of.

The person said what was wrong, or asked once more, and of the next answer only something else: a new task, thanks. That
is not approval of it, and alone it says nothing. Beside the answer that was rejected it says which of the two to give.
Owns which answers those are. The rows and their ratings are kept as pairs (judged_pairs). Not here: what a signal says
of an answer (proxy.signals), how far a judge is trusted (proxy.signals.trust).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Final

from store.captured.rows import to_json
from store.learning import ratings
from store.reader import Reader
from store.records import NewRating

SIDE: Final = "redone"  # in the weights of whoever is trusted: as much as what it finds bad
# The first answer is labelled by this judge, mostly by words that say what to do: with a new task among them the second
# answer would be one to that. Of the second, someone typed words, and nobody has anything against it.
_FOUND: Final = """SELECT s.completion_id AS worse, s.next_id AS better FROM signals s
CROSS JOIN completions b ON b.id = s.next_id AND b.turn = 'main' AND b.status = 'done'
CROSS JOIN completions w ON w.id = s.completion_id AND w.turn = 'main'
WHERE s.state = 'labelled' AND s.judge = :judge AND s.config = :config AND s.value < 0
AND (s.label = 'redo' OR (s.label = 'correction' AND 2 * length(s.hint) >= length(s.said)))
AND EXISTS (SELECT 1 FROM signals n WHERE n.completion_id = b.id AND n.kind = 'message' AND n.state = 'labelled'
    AND n.label IN ('nothing', 'solved') AND ((n.judge = :judge AND n.config = :config) OR n.judge = 'rules'))
AND NOT EXISTS (SELECT 1 FROM signals n WHERE n.completion_id = b.id AND (n.value < 0 OR n.state = 'waiting'))
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id IN (b.id, w.id) AND r.live = 1 AND r.human = 1)
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = b.id AND r.live = 1 AND r.rater = :rater)
AND NOT EXISTS (SELECT 1 FROM ratings r CROSS JOIN run_samples t ON t.rating_id = r.id
    CROSS JOIN runs u ON u.id = t.run_id WHERE r.completion_id = b.id AND r.rater = :rater
    AND u.status IN ('claimed', 'running', 'done'))
GROUP BY s.next_id"""


def rate(db: sqlite3.Connection, judge: str, config: str, rater: str, weight: float) -> int:
    """A good rating of each that has none; how many."""
    found = db.execute(_FOUND, {"judge": judge, "config": config, "rater": rater}).fetchall()
    for row in found:
        new = NewRating(row["better"], rater, 1.0, weight=weight, source=ratings.JUDGED, human=False)
        given = ratings.rate(db, new)
        known = (row["better"], row["worse"], judge, config)
        db.execute("DELETE FROM judged_pairs WHERE better = ? AND worse = ? AND judge = ? AND config = ?", known)
        db.execute(
            """INSERT INTO judged_pairs (better, worse, judge, config, created_at, better_rating)
            VALUES (?, ?, ?, ?, ?, ?)""",
            (*known, time.time(), given.id),
        )
    return len(found)


async def firsts(reader: Reader, rating_ids: Sequence[str]) -> dict[str, str]:
    """By rating, the answer that was asked for again before the rated one."""
    rows = await reader.rows(
        """SELECT p.better_rating AS rating, p.worse FROM judged_pairs p
        WHERE p.better_rating IN (SELECT value FROM json_each(?)) AND p.worse_rating IS NULL""",
        (to_json(list(rating_ids)),),
    )
    return {row["rating"]: row["worse"] for row in rows}


def broken(db: sqlite3.Connection) -> list[str]:
    """Ratings of answers against which something was found after all."""
    rows = db.execute(
        """SELECT r.id FROM judged_pairs p CROSS JOIN ratings r ON r.id = p.better_rating AND r.live = 1 AND r.human = 0
        WHERE p.worse_rating IS NULL
        AND EXISTS (SELECT 1 FROM signals n WHERE n.completion_id = p.better AND n.value < 0)"""
    )
    return [row["id"] for row in rows]
