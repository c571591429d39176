"""Pairs of answers to one question that a judge has ranked, the groups that wait for it, and what pairs become.

A pair is not a rating. It becomes two, of the rater `judge:NAME`, good and bad, by `rate`, and the trainer makes a pair
of them again. Owns the rows, which answers are a group, and the pairs that people and a judge have both decided. Not
here: who is asked (proxy.signals.ranking), how far a judge is trusted (proxy.signals.trust).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from store.file import meta
from store.file.part import StorePart
from store.learning import ratings
from store.records import NewRating, SharedJudgement

LAST_SEEN_KEY: Final = "ranked_after"  # the newest completion that was looked at, by seq
MOST: Final = 6  # answers of a group: the newest
QUIET_S: Final = 20.0  # after its newest answer: the others of a group may still come
_GROUPED: Final = """(c.turn = 'main' OR c.session = 'compare') AND c.status = 'done' AND c.text <> ''
AND coalesce(c.untrainable, '') <> 'further_model'"""
MAX_BACKLOG: Final = 1000  # completions that it may be behind; older ones go unranked
_UNSEEN: Final = """SELECT c.seq, c.id, c.finished_at, c.status FROM completions c
WHERE c.seq > max(?, (SELECT coalesce(max(seq), 0) FROM completions) - ?) ORDER BY c.seq LIMIT 200"""
# The answers of one asker to the same conversation, where this completion is the newest of them.
_GROUP: Final = f"""SELECT c.id, c.text, c.asked, c.images FROM completions n
CROSS JOIN completions c ON c.prompt_hash = n.prompt_hash
WHERE n.seq = ? AND n.prompt_hash IS NOT NULL AND {_GROUPED} AND +c.key IS n.key AND +c.user IS n.user
AND (SELECT coalesce(group_concat(hex(a.hash), ''), '') FROM
    (SELECT hash FROM completion_system WHERE completion_id = c.id ORDER BY at) a)
  = (SELECT coalesce(group_concat(hex(a.hash), ''), '') FROM
    (SELECT hash FROM completion_system WHERE completion_id = n.id ORDER BY at) a)
AND NOT EXISTS (SELECT 1 FROM completions l WHERE l.prompt_hash = n.prompt_hash AND l.seq > n.seq
    AND +l.key IS n.key AND +l.user IS n.user)
ORDER BY c.seq DESC LIMIT {MOST}"""  # noqa: S608  constants of this module
_SHARED: Final = """SELECT p.better, p.worse,
(SELECT avg(r.value) FROM ratings r WHERE r.completion_id = p.better AND r.live = 1 AND r.human = 1) AS liked,
(SELECT avg(r.value) FROM ratings r WHERE r.completion_id = p.worse AND r.live = 1 AND r.human = 1) AS disliked
FROM judged_pairs p WHERE p.judge = ? AND p.config = ? ORDER BY p.seq DESC LIMIT ?"""
_TO_RATE: Final = """SELECT p.seq, p.better, p.worse FROM judged_pairs p WHERE p.judge = :judge AND p.config = :config
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id IN (p.better, p.worse) AND r.live = 1
    AND (r.human = 1 OR r.rater = :rater))
AND NOT EXISTS (SELECT 1 FROM ratings r CROSS JOIN run_samples t ON t.rating_id = r.id
    CROSS JOIN runs u ON u.id = t.run_id WHERE r.completion_id IN (p.better, p.worse) AND r.rater = :rater
    AND u.status IN ('claimed', 'running', 'done'))"""


class RankedGroup(NamedTuple):
    """Answers to one question, the newest first."""

    question: str
    answers: tuple[tuple[str, str], ...]  # id and text
    images: int = 0  # that came with the question


class JudgedPairStore(StorePart):
    async def waiting(self) -> tuple[int, RankedGroup | None]:
        """How far was looked, by seq, and the group that ends there, which waits for `keep`. None where there is no
        group up to there, or the newest answer came just now."""
        last_seq = int(await meta.get_meta(self._reader, LAST_SEEN_KEY, 0))
        until = last_seq
        for row in await self._reader.rows(_UNSEEN, (last_seq, MAX_BACKLOG)):
            if row["status"] == "pending" or (row["finished_at"] or 0.0) > time.time() - QUIET_S:
                break
            until = int(row["seq"])
            group_rows = await self._reader.rows(_GROUP, (until,))
            answers = tuple(
                {answer_row["text"]: (answer_row["id"], answer_row["text"]) for answer_row in group_rows}.values()
            )
            if len(answers) > 1 and row["id"] in {answer_row["id"] for answer_row in group_rows}:
                return until, RankedGroup(group_rows[0]["asked"], answers, group_rows[0]["images"])
        if until > last_seq:
            await self._writer.submit(lambda db: meta.set_meta(db, LAST_SEEN_KEY, until))
        return until, None

    async def keep(self, pairs: Sequence[tuple[str, str]], judge: str, config: str, until: int) -> None:
        """Store these, better and worse, and that all up to there has been looked at: in one transaction."""
        await self._writer.submit(lambda db: _keep(db, pairs, judge, config, until))

    async def decided(self, judge: str, config: str, limit: int) -> tuple[list[SharedJudgement], int]:
        """Pairs that people have rated unlike, too, the newest first: the worse answer, and 1 where the first one by id
        is better, else -1. And how many newer ones they have not."""
        judgements: list[SharedJudgement] = []
        unseen = 0
        for row in await self._reader.rows(_SHARED, (judge, config, limit)):
            if row["liked"] is None or row["disliked"] is None or row["liked"] == row["disliked"]:
                unseen += not judgements
                continue
            judged = 1.0 if row["better"] < row["worse"] else -1.0
            person = judged if row["liked"] > row["disliked"] else -judged
            judgements.append(SharedJudgement(row["worse"], person, judged))
        return judgements, unseen

    async def counts(self) -> dict[str, int]:
        """How many pairs each judge has stored."""
        rows = await self._reader.rows("SELECT judge, count(*) AS count FROM judged_pairs GROUP BY judge")
        return {row["judge"]: row["count"] for row in rows}


def _keep(db: sqlite3.Connection, pairs: Sequence[tuple[str, str]], judge: str, config: str, until: int) -> None:
    db.executemany(
        """INSERT INTO judged_pairs (better, worse, judge, config, created_at) SELECT ?, ?, ?, ?, ?
        WHERE 2 = (SELECT count(*) FROM completions c WHERE c.id IN (?, ?))""",
        [(better, worse, judge, config, time.time(), better, worse) for better, worse in pairs],
    )
    meta.set_meta(db, LAST_SEEN_KEY, until)


def broken(db: sqlite3.Connection) -> list[str]:
    """Ratings of pairs whose other half a person has rated. Alone they would say that an answer is good or bad, and a
    ranking does not know that."""
    rows = db.execute(
        """SELECT r.id FROM ratings r CROSS JOIN judged_pairs p ON p.better_rating = r.id
        WHERE r.live = 1 AND r.human = 0 AND r.source = :source
        AND EXISTS (SELECT 1 FROM ratings o WHERE o.completion_id = p.worse AND o.live = 1 AND o.human = 1)
        UNION ALL SELECT r.id FROM ratings r CROSS JOIN judged_pairs p ON p.worse_rating = r.id
        WHERE r.live = 1 AND r.human = 0 AND r.source = :source
        AND EXISTS (SELECT 1 FROM ratings o WHERE o.completion_id = p.better AND o.live = 1 AND o.human = 1)""",
        {"source": ratings.JUDGED},
    )
    return [row["id"] for row in rows]


def rate(db: sqlite3.Connection, judge: str, config: str, rater: str, weight: float) -> int:
    """Two ratings of each pair that nobody else has rated; how many pairs."""
    rows = db.execute(_TO_RATE, {"judge": judge, "config": config, "rater": rater}).fetchall()
    count, used_answers = 0, set[str]()
    for row in rows:
        if used_answers & {row["better"], row["worse"]}:
            continue  # an answer is in one pair at most
        used_answers |= {row["better"], row["worse"]}
        rating_ids = [
            ratings.rate(db, NewRating(id, rater, value, weight=weight, source=ratings.JUDGED, human=False)).id
            for id, value in ((row["better"], 1.0), (row["worse"], -1.0))
        ]
        db.execute(
            "UPDATE judged_pairs SET better_rating = ?, worse_rating = ? WHERE seq = ?", (*rating_ids, row["seq"])
        )
        count += 1
    return count
