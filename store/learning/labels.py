"""Labels of signals become ratings, as far as those who gave them are trusted, and are taken back where they are not.

What a judge finds bad trains beside what a person went on from: 0, which is not approval, and at most as many. Owns
which labels are a rating now, of the rater `judge:NAME`. Not here: the signals (signals), pairs that a judge has
ranked (judged_pairs), how far a judge is trusted (proxy.signals.trust).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from store.captured.rows import from_json
from store.learning import judged_pairs, ratings
from store.records import NewRating

RULES: Final = "rules"
RULES_CONFIG: Final = ""  # rules have no prompts
OWN_CODE: Final = "own"
WENT_ON: Final = "went on"  # the side of answers that a person had words after, and none against

_TO_RATE: Final = """SELECT s.completion_id, total(DISTINCT s.value) AS value, max(s.hint) AS hint,
json_group_array(s.seq) AS signals FROM signals s CROSS JOIN completions c ON c.id = s.completion_id AND c.turn = 'main'
WHERE s.state = 'labelled' AND s.judge = :judge AND s.config = :config AND s.value <> 0
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = s.completion_id AND r.live = 1
    AND (r.human = 1 OR r.rater = :rater))
AND NOT EXISTS (SELECT 1 FROM ratings r CROSS JOIN run_samples t ON t.rating_id = r.id
    CROSS JOIN runs u ON u.id = t.run_id
    WHERE r.completion_id = s.completion_id AND r.rater = :rater AND u.status IN ('claimed', 'running', 'done'))
GROUP BY s.completion_id"""
# A person typed something after it that is not about it. An answer to a complaint has the complaint before it: beside
# others it would show what an answer after a complaint looks like, and not what a good one does.
_WENT_ON: Final = """SELECT s.completion_id, json_group_array(s.seq) AS signals FROM signals s
CROSS JOIN completions c ON c.id = s.completion_id AND c.turn = 'main' AND c.status = 'done'
WHERE s.state = 'labelled' AND s.kind = 'message' AND s.label = 'nothing'
AND ((s.judge = :judge AND s.config = :config) OR s.judge = 'rules')
AND NOT EXISTS (SELECT 1 FROM signals n WHERE n.completion_id = s.completion_id
    AND (n.value <> 0 OR n.state = 'waiting' OR n.label = 'unclear'))
AND NOT EXISTS (SELECT 1 FROM signals n WHERE n.next_id = s.completion_id AND n.value < 0)
AND NOT EXISTS (SELECT 1 FROM ratings r WHERE r.completion_id = s.completion_id AND r.live = 1
    AND (r.human = 1 OR r.rater = :rater))
AND NOT EXISTS (SELECT 1 FROM ratings r CROSS JOIN run_samples t ON t.rating_id = r.id
    CROSS JOIN runs u ON u.id = t.run_id
    WHERE r.completion_id = s.completion_id AND r.rater = :rater AND u.status IN ('claimed', 'running', 'done'))
GROUP BY s.completion_id ORDER BY max(s.seq) DESC LIMIT :room"""
# How many more of its ratings are bad than 0, of those that no run has.
_ROOM: Final = """SELECT total(r.value < 0) - total(r.value = 0) AS room FROM ratings r
WHERE r.live = 1 AND r.rater = ? AND NOT EXISTS (SELECT 1 FROM run_samples t CROSS JOIN runs u ON u.id = t.run_id
    WHERE t.rating_id = r.id AND u.status IN ('claimed', 'running', 'done'))"""


class TrustedJudge(NamedTuple):
    """A judge whose labels may train, with the weight of each side that may: "bad", "good", and what a person went on
    from."""

    judge: str
    config: str
    weights: Mapping[str, float]
    pairs: bool = False  # it ranks answers: its pairs become ratings, not its labels


def apply(db: sqlite3.Connection, trusted: Sequence[TrustedJudge]) -> tuple[int, int]:
    """Make ratings of the labels of these judges, and take back all else that any judge has rated. How many came and
    went. In one transaction, so that no run claims in between."""
    standing = db.execute(
        """SELECT r.id, r.rater, r.value, coalesce((SELECT s.config FROM signals s WHERE s.rating_id = r.id LIMIT 1),
        (SELECT p.config FROM judged_pairs p WHERE p.better_rating = r.id LIMIT 1),
        (SELECT p.config FROM judged_pairs p WHERE p.worse_rating = r.id LIMIT 1)) AS config
        FROM ratings r WHERE r.live = 1 AND r.human = 0 AND r.source = ?""",
        (ratings.JUDGED,),
    ).fetchall()
    holds = {(rater_of(judge.judge), judge.config, side) for judge in trusted for side in judge.weights}
    # Of thanks alone no judge was asked.
    holds |= {(rater_of(judge.judge), RULES_CONFIG, WENT_ON) for judge in trusted if WENT_ON in judge.weights}
    retracted = {row["id"] for row in standing if (row["rater"], row["config"], _side(row["value"])) not in holds}
    retracted |= {*judged_pairs.broken(db), *_contradicted(db)}
    for id in retracted:
        ratings.retract(db, id)
    return sum(_rate_pairs(db, judge) if judge.pairs else _rate(db, judge) for judge in trusted), len(retracted)


def _rate_pairs(db: sqlite3.Connection, trusted: TrustedJudge) -> int:
    """A pair is trusted as a whole, so both of its sides have to be."""
    if len(trusted.weights) < 2:
        return 0
    weight = max(min(trusted.weights.values()), ratings.LEAST_WEIGHT)
    return judged_pairs.rate(db, trusted.judge, trusted.config, rater_of(trusted.judge), weight)


def _rate(db: sqlite3.Connection, trusted: TrustedJudge) -> int:
    rater, count = rater_of(trusted.judge), 0
    rows = db.execute(_TO_RATE, {"judge": trusted.judge, "config": trusted.config, "rater": rater}).fetchall()
    for row in rows:
        weight = trusted.weights.get(_side(row["value"]), 0.0)
        if not weight:
            continue
        hint = row["hint"] if row["value"] <= 0 else None
        rating = ratings.rate(
            db,
            NewRating(
                row["completion_id"],
                rater,
                max(-1.0, min(1.0, row["value"])),
                comment=hint or "",
                weight=max(weight, ratings.LEAST_WEIGHT),
                source=ratings.JUDGED,
                human=False,
            ),
        )
        for seq in from_json(row["signals"]):
            db.execute("UPDATE signals SET rating_id = ? WHERE seq = ?", (rating.id, seq))
        count += 1
    return count + _rate_went_on(db, trusted, rater)


def _rate_went_on(db: sqlite3.Connection, trusted: TrustedJudge, rater: str) -> int:
    """Zero of what a person went on from: nothing was said against it, and nothing for it. At most as many as are bad,
    the newest: it is there to compare those with, and alone it would say nothing."""
    weight = trusted.weights.get(WENT_ON, 0.0)
    (room,) = db.execute(_ROOM, (rater,)).fetchone()
    if not weight or room <= 0:
        return 0
    parameters = {"judge": trusted.judge, "config": trusted.config, "rater": rater, "room": int(room)}
    rows = db.execute(_WENT_ON, parameters).fetchall()
    for row in rows:
        new = NewRating(row["completion_id"], rater, 0.0, weight=weight, source=ratings.JUDGED, human=False)
        rating = ratings.rate(db, new)
        for seq in from_json(row["signals"]):
            db.execute("UPDATE signals SET rating_id = ? WHERE seq = ?", (rating.id, seq))
    return len(rows)


def _contradicted(db: sqlite3.Connection) -> list[str]:
    """Zeros of answers that somebody has had something to say about since."""
    rows = db.execute(
        """SELECT r.id FROM ratings r WHERE r.live = 1 AND r.human = 0 AND r.source = ? AND r.value = 0
        AND EXISTS (SELECT 1 FROM signals n WHERE n.completion_id = r.completion_id AND n.value <> 0)""",
        (ratings.JUDGED,),
    )
    return [row["id"] for row in rows]


def _side(value: float) -> str:
    if value:
        return "bad" if value < 0 else "good"
    return WENT_ON


def rater_of(judge: str) -> str:
    return f"judge:{judge}"
