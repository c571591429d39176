"""Which ratings a run may take, and the claim that takes them: each rating trains once.

A rating is fresh while it is live, its completion has a reply of a version that is ours, and no run has it.
Runs that were rejected, empty or failed have given theirs back. A run takes completions whole, with all their fresh
ratings, and no gate is asked about a completion that trained. A completion of raw text has no chat template to be
rendered with: it trains on its exact ids or not at all. One that saw more than its text (`untrainable`) never
trains. Not here: what becomes of a run (`runs`).
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from store import completions
from store.reader import Reader
from store.records import Fresh, Run, Sample
from store.rows import to_rating, to_run

FRESH = """FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id
WHERE r.live = 1 AND c.status IN ('done', 'partial') AND c.reply_hash IS NOT NULL AND c.version IS NOT NULL
AND c.untrainable IS NULL AND (c.dialect <> 'completions' OR c.exact = 1 OR c.translated = 1)
AND NOT EXISTS (SELECT 1 FROM run_samples s JOIN runs u ON u.id = s.run_id
                WHERE s.rating_id = r.id AND u.status IN ('claimed', 'running', 'done'))"""
NEAR = "abs(:live - c.version) <= :gap"  # after a rollback a version may be above the live one
FEWEST_TO_HOLD = 8  # with fewer samples the gate learns nothing from holding some back


class Candidate(NamedTuple):
    """A rating as the split sees it."""

    id: str
    completion_id: str
    value: float


async def fresh(reader: Reader, live: int, max_version_gap: int, before: float | None) -> Fresh:
    row = await reader.row(
        f"""SELECT total(near AND value > 0) AS good, total(near AND value < 0) AS bad,
        total(near AND value = 0) AS neutral, total(NOT near) AS stale
        FROM (SELECT r.value, {NEAR} AS near {FRESH}
        AND (:before IS NULL OR r.created_at < :before))""",  # noqa: S608  constants of this module
        {"live": live, "gap": max_version_gap, "before": before},
    )
    assert row is not None  # an aggregate always has one
    return Fresh(*(int(count) for count in row))


async def untrainable(reader: Reader) -> dict[str, int]:
    """Live ratings of completions that never train, by why."""
    rows = await reader.rows(
        """SELECT c.untrainable AS why, count(*) AS count FROM ratings r CROSS JOIN completions c
        ON c.id = r.completion_id WHERE r.live = 1 AND c.untrainable IS NOT NULL GROUP BY c.untrainable"""
    )
    return {row["why"]: row["count"] for row in rows}


def claim(
    db: sqlite3.Connection,
    *,
    model: str,
    live: int,
    max_version_gap: int,
    limit: int,
    held_share: float,
    folder_of: Callable[[int], str],
    version: int,
    min_total: int,
) -> Run | None:
    """Make a run of the newest completions with fresh ratings; None while another is open or there are too few."""
    if db.execute("SELECT 1 FROM runs WHERE status IN ('claimed', 'running')").fetchone() is not None:
        return None
    rows = db.execute(
        f"SELECT r.id, r.completion_id, r.value {FRESH} AND {NEAR} ORDER BY r.seq DESC",
        {"live": live, "gap": max_version_gap},
    ).fetchall()
    if len(rows) < max(1, min_total):
        return None
    taken = _newest(rows, limit)
    trained = _trained(db, taken)
    held = hold_back([rating for rating in taken if rating.completion_id not in trained], held_share)
    chosen = {rating.completion_id for rating in taken}
    kept_back = {rating.completion_id for rating in taken if rating.id in held}
    (run_id,) = db.execute(
        """INSERT INTO runs (status, model, version, parent, folder, created_at, samples, held)
        VALUES ('claimed', ?, ?, ?, '', ?, ?, ?) RETURNING id""",
        (model, version, live, time.time(), len(chosen), len(kept_back)),
    ).fetchone()
    db.executemany(
        "INSERT INTO run_samples VALUES (?, ?, ?)",
        [(run_id, rating.id, "held" if rating.id in held else "train") for rating in taken],
    )
    row = db.execute("UPDATE runs SET folder = ? WHERE id = ? RETURNING *", (folder_of(run_id), run_id)).fetchone()
    return to_run(row)


def _newest(rows: Iterable[Sequence[Any]], limit: int) -> list[Candidate]:
    """All fresh ratings of the `limit` completions that were rated last."""
    taken: list[Candidate] = []
    chosen: set[str] = set()
    for row in rows:
        rating = Candidate(*row)
        if rating.completion_id in chosen or len(chosen) < limit:
            chosen.add(rating.completion_id)
            taken.append(rating)
    return taken


def _trained(db: sqlite3.Connection, ratings: Iterable[Candidate]) -> set[str]:
    """Completions among these that trained before, by an earlier rating: no gate may be asked about them."""
    ids = orjson.dumps(sorted({rating.completion_id for rating in ratings})).decode()
    rows = db.execute(
        """SELECT DISTINCT r.completion_id FROM json_each(?) j CROSS JOIN ratings r ON r.completion_id = j.value
        CROSS JOIN run_samples s ON s.rating_id = r.id CROSS JOIN runs u ON u.id = s.run_id
        WHERE s.split = 'train' AND u.status = 'done'""",
        (ids,),
    )
    return {row[0] for row in rows}


def hold_back(ratings: Sequence[Candidate], share: float) -> set[str]:
    """The ids kept for the gate: about `share` of them, good and bad alike, in any order the same."""
    if share <= 0 or len(ratings) < FEWEST_TO_HOLD:
        return set()
    wanted = math.ceil(min(share, 1) * len(ratings))
    drawn = sorted(ratings, key=_lot)
    groups = [
        [rating for rating in drawn if rating.value > 0],
        [rating for rating in drawn if rating.value < 0],
        [rating for rating in drawn if rating.value == 0],
    ]
    counts = [min(1, len(groups[0])), min(1, len(groups[1])), 0]  # never without a good or a bad one
    while sum(counts) < wanted:
        room = [at for at in range(3) if counts[at] < len(groups[at])]
        counts[min(room, key=lambda at: (counts[at] + 0.5) / len(groups[at]))] += 1
    # A completion that several people rated is on one side: the gate must not see what was trained on.
    chosen = {rating.completion_id for group, count in zip(groups, counts, strict=True) for rating in group[:count]}
    held = {rating.id for rating in ratings if rating.completion_id in chosen}
    return held if len(held) < len(ratings) else set()


def _lot(rating: Candidate) -> bytes:
    return hashlib.blake2b(rating.id.encode(), digest_size=8).digest()


async def samples_of(reader: Reader, run_id: int) -> list[Sample]:
    rows = await reader.rows(
        """SELECT r.*, s.split FROM run_samples s JOIN ratings r ON r.id = s.rating_id
        WHERE s.run_id = ? ORDER BY r.seq DESC""",
        (run_id,),
    )
    return await _samples(reader, rows)


async def recent_held(reader: Reader, limit: int) -> list[Sample]:
    """What earlier runs held back, nobody took back and no later rating has brought into training since."""
    rows = await reader.rows(
        """SELECT r.*, s.split FROM runs u CROSS JOIN run_samples s ON s.run_id = u.id
        CROSS JOIN ratings r ON r.id = s.rating_id
        WHERE u.status = 'done' AND s.split = 'held' AND r.live = 1
        AND NOT EXISTS (SELECT 1 FROM ratings x CROSS JOIN run_samples t ON t.rating_id = x.id
                        CROSS JOIN runs v ON v.id = t.run_id
                        WHERE x.completion_id = r.completion_id AND t.split = 'train'
                        AND v.status IN ('claimed', 'running', 'done'))
        ORDER BY u.id DESC, r.seq DESC LIMIT ?""",
        (limit,),
    )
    return await _samples(reader, rows)


async def _samples(reader: Reader, rows: Iterable[sqlite3.Row]) -> list[Sample]:
    rated = [(to_rating(row), row["split"] == "held") for row in rows]
    whole = await completions.load(reader, [rating.completion_id for rating, _ in rated])
    return [
        Sample(rating, whole[rating.completion_id], whole[rating.completion_id].new.prompt, held)
        for rating, held in rated
        if rating.completion_id in whole  # forgotten between the two reads
    ]
