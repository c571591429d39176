"""Which ratings a run may take, and the claim that takes them: each rating trains once.

A rating is fresh while it is live and its completion has a reply of one of our versions. No run has it, or the one that
it repeats. Replies of a model that is not ours (no version) are taken instead by runs that ask for `foreign` ones, and
by no other. A run takes ratings of its line. Runs that were rejected, empty or failed have given theirs back. A run
takes completions whole, with all their fresh ratings, and no gate is asked about a completion that trained. A
completion of raw text has no chat template to be rendered with: it trains on its exact ids or not at all. One that saw
more than its text (`untrainable`) never trains, nor does a liked one that a check of the user's own has flagged. Not
here: what becomes of a run (`runs`), how much of it one rater may be (`rater_quota`).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from store.captured import completions
from store.captured.rows import to_rating, to_run
from store.file.part import StorePart
from store.file.reader import Reader
from store.learning import line_reach, unlearning
from store.learning.rater_quota import (
    LEAST_WEIGHT,
    OWNER,
    RECENT_S,
    QuotaCandidate,
    is_judge,
    of_judges,
    voice,
    within,
    within_judges,
)
from store.learning.runs import RunRequirements, another_is_open, begin
from store.line_records import COMMON
from store.records import Fresh, Rebuild, Run, RunSample

# Two questions instead of one with IN: PostgreSQL would compare each rating with each sample of all runs.
_TRAINED = """EXISTS (SELECT 1 FROM run_samples s JOIN runs u ON u.id = s.run_id
WHERE s.rating_id = {} AND u.status IN ('claimed', 'running', 'done') AND u.retrains = 0)"""
# Of every line.
UNUSED = f"""FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id
WHERE r.live = 1 AND c.status IN ('done', 'partial') AND c.reply_hash IS NOT NULL AND (c.version IS NULL) = :foreign
AND c.untrainable IS NULL AND (c.dialect <> 'completions' OR c.exact = 1 OR c.translated = 1)
AND NOT (r.value > 0 AND EXISTS (SELECT 1 FROM flags f WHERE f.completion_id = c.id))
AND NOT {_TRAINED.format("r.id")} AND NOT {_TRAINED.format("r.repeats")}"""  # noqa: S608  constants of this module
FRESH = f"{UNUSED} AND c.line = :line"
_OF_RUNS = "SELECT rating_id FROM run_samples WHERE run_id IN (SELECT CAST(value AS INTEGER) FROM json_each(:runs))"
GIVEN_BACK = f"(r.id IN ({_OF_RUNS}) OR r.repeats IN ({_OF_RUNS}))"
NEAR = "(:foreign OR c.version BETWEEN :oldest AND :newest)"  # `line_reach`
_BEFORE_RUN = """(:run IS NULL OR r.seq <= (
SELECT max(x.seq) FROM run_samples t CROSS JOIN ratings x ON x.id = t.rating_id WHERE t.run_id = :run))"""
FEWEST_TO_HOLD = 16  # where a good and a bad one are an eighth; with fewer samples all train
USUAL = 32  # samples of which just `held_share` is held back
MOST = 2.0  # times `held_share` that is held back of very many
AT_MOST = 0.5  # of the samples, whatever the setting


NOBODY: Final[Mapping[str, float]] = {}
# Praise is no instruction, so only a dislike's comment teaches.
CANDIDATE = """r.id, r.completion_id, r.value, r.rater, r.weight,
r.correction IS NOT NULL OR (r.comment IS NOT NULL AND r.value < 0) AS teaches, r.human, c.prompt_hash"""
RATERS = """SELECT r.rater, total(max(min(r.weight, 1), ?)) FROM ratings r CROSS JOIN completions c
ON c.id = r.completion_id WHERE r.live = 1 AND r.human = 1 AND r.created_at > ? AND c.line = ? GROUP BY r.rater"""


def _candidates(rows: Iterable[sqlite3.Row], raters: Mapping[str, float]) -> list[QuotaCandidate]:
    return [
        QuotaCandidate(
            id,
            completion,
            value,
            rater,
            voice(weight, raters.get(rater, 1.0)),
            bool(teaches),
            bool(human),
            prompt or b"",
        )
        for id, completion, value, rater, weight, teaches, human, prompt in rows
    ]


async def load_recent_voices(reader: Reader, raters: Mapping[str, float], line: str) -> dict[str, float]:
    """The company in which a rater of this line is bounded (`share.within`)."""
    return _rater_totals(await reader.rows(RATERS, (LEAST_WEIGHT, time.time() - RECENT_S, line)), raters)


def _rater_totals(rows: Iterable[sqlite3.Row], raters: Mapping[str, float]) -> dict[str, float]:
    """Each rater's recent ratings, a rating as one or, if it is lighter, as its weight."""
    return {rater: total * min(raters.get(rater, 1.0), 1.0) for rater, total in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequirements(RunRequirements):
    held_share: float
    foreign: bool = False
    share: float = 1.0  # bounds each rater, by the weights of their ratings and of `raters`
    raters: Mapping[str, float] = field(default_factory=dict)
    judge_share: float = 0.5  # of a run that has people's ratings
    rebuilds: bool = False  # takes the oldest, as those did whose place it takes


def claim(db: sqlite3.Connection, requirements: SampleRequirements) -> Run | None:
    """Make a run of the newest completions with fresh ratings (or the oldest).

    None while another is open or there are too few. Where people's ratings are too few for a run, what judges have
    rated makes one by itself.
    """
    if another_is_open(db):
        return None
    rows = db.execute(
        f"SELECT {CANDIDATE} {FRESH} AND {NEAR} ORDER BY r.seq {'ASC' if requirements.rebuilds else 'DESC'}",
        {
            "foreign": requirements.foreign,
            "line": requirements.line,
            **line_reach.of_line(db, requirements.line, requirements.live, requirements.max_version_gap).parameters(),
        },
    ).fetchall()
    return take(db, requirements, rows)


def take(db: sqlite3.Connection, requirements: SampleRequirements, rows: Sequence[sqlite3.Row]) -> Run | None:
    """Make a run of the first of these rows of `CANDIDATE`, within everybody's share; None where they are too few."""
    share, judge_share, limit = requirements.share, requirements.judge_share, requirements.limit
    recent_rows = (
        [] if share >= 1 else db.execute(RATERS, (LEAST_WEIGHT, time.time() - RECENT_S, requirements.line)).fetchall()
    )
    recent_totals = _rater_totals(recent_rows, requirements.raters)
    # Once among all, so that the newest are not all of one rater's flood; once of what is taken.
    bounded = within(_candidates(rows, requirements.raters), share, recent_totals)
    usable = within_judges(bounded, judge_share)
    if len(usable) < requirements.min_total:  # people go first; a run without their ratings outvotes none of them
        usable = of_judges(bounded)
    chosen = within_judges(within(_first(usable, limit), share, recent_totals), judge_share)
    if not chosen or len(usable) < requirements.min_total:
        return None
    trained = set() if requirements.retrains else _trained(db, chosen)  # another base has seen none of them
    holdable = [rating for rating in chosen if rating.completion_id not in trained and rating.human]  # gates ask people
    held_ids = hold_back(holdable, requirements.held_share, _previously_held(db, holdable))
    kept_back = {rating.completion_id for rating in chosen if rating.id in held_ids}
    run = begin(db, requirements, samples=len({rating.completion_id for rating in chosen}), held_samples=len(kept_back))
    db.executemany(
        "INSERT INTO run_samples VALUES (?, ?, ?)",
        [(run.id, rating.id, "held" if rating.id in held_ids else "train") for rating in chosen],
    )
    return run


def _first(ratings: Iterable[QuotaCandidate], limit: int) -> list[QuotaCandidate]:
    """All fresh ratings of the first `limit` completions in this order."""
    first: list[QuotaCandidate] = []
    chosen: set[str] = set()
    for rating in ratings:
        if rating.completion_id in chosen or len(chosen) < limit:
            chosen.add(rating.completion_id)
            first.append(rating)
    return first


def _trained(db: sqlite3.Connection, ratings: Iterable[QuotaCandidate]) -> set[str]:
    """Completions among these that trained before, by an earlier rating: no gate may be asked about them."""
    ids = orjson.dumps(sorted({rating.completion_id for rating in ratings})).decode()
    rows = db.execute(
        """SELECT DISTINCT r.completion_id FROM json_each(?) j CROSS JOIN ratings r ON r.completion_id = j.value
        CROSS JOIN run_samples s ON s.rating_id = r.id CROSS JOIN runs u ON u.id = s.run_id
        WHERE s.split = 'train' AND u.status = 'done' AND u.retrains = 0""",
        (ids,),
    )
    return {row[0] for row in rows}


def _previously_held(db: sqlite3.Connection, ratings: Iterable[QuotaCandidate]) -> set[str]:
    """Ratings among these that a run held back and, as it published nothing, gave back."""
    ids = orjson.dumps([rating.id for rating in ratings]).decode()
    rows = db.execute(
        """SELECT DISTINCT s.rating_id FROM json_each(?) j CROSS JOIN run_samples s ON s.rating_id = j.value
        WHERE s.split = 'held'""",
        (ids,),
    )
    return {row[0] for row in rows}


def to_hold(count: int, share: float) -> int:
    """How many of `count` samples are kept for the gate: `share` of 32, less of fewer, up to twice as much of more.

    One more held back sharpens the gate's margin by the root of their number, one more trained teaches less the more
    there are. So the share itself grows with the root: of few ratings nearly all train, and many can spare some.
    """
    if share <= 0 or count < FEWEST_TO_HOLD:
        return 0
    return math.ceil(min(AT_MOST, share * min(MOST, math.sqrt(count / USUAL))) * count)


def explain_held(held_count: int, count: int, share: float) -> str:
    """For people, why so many of a run's samples are held back."""
    if not held_count:
        reason = "train.held_share is 0" if share <= 0 else f"of fewer than {FEWEST_TO_HOLD} all train"
        return f"of {count} samples for the gate: {reason}"
    return (
        f"of {count} samples for the gate, {held_count / count:.1%}: train.held_share = {share:g} of {USUAL}, less of "
        "fewer, more of more; what was held back stays so, unless it is rated anew"
    )


def hold_back(ratings: Sequence[QuotaCandidate], share: float, already_held: Collection[str] = ()) -> set[str]:
    """The ids kept for the gate: `to_hold` completions, good and bad alike, in any order the same.

    Which they are is a lot drawn from each rating's id, or from its prompt. A good and a bad answer to one prompt are a
    pair for the trainer, and mostly stay together. What is `already_held` stays held, whatever the lot.
    """
    drawn: dict[str, QuotaCandidate] = {}  # one rating speaks for its completion
    for rating in sorted(ratings, key=lambda rating: (rating.id not in already_held, *_lots(rating))):
        drawn.setdefault(rating.completion_id, rating)
    target = to_hold(len(drawn), share)
    groups: list[list[QuotaCandidate]] = [[], [], []]
    for rating in drawn.values():
        groups[0 if rating.value > 0 else 1 if rating.value < 0 else 2].append(rating)
    counts = [sum(rating.id in already_held for rating in group) for group in groups]
    if target:
        counts = [max(counts[0], min(1, len(groups[0]))), max(counts[1], min(1, len(groups[1]))), counts[2]]
    while sum(counts) < target:
        room = [index for index in range(3) if counts[index] < len(groups[index])]
        counts[min(room, key=lambda position: (counts[position] + 0.5) / len(groups[position]))] += 1
    # A completion that several people rated is on one side: the gate must not see what was trained on.
    chosen = {rating.completion_id for group, count in zip(groups, counts, strict=True) for rating in group[:count]}
    return {rating.id for rating in ratings if rating.completion_id in chosen}


def _lots(rating: QuotaCandidate) -> tuple[bytes, bytes]:
    of_rating = hashlib.blake2b(rating.id.encode(), digest_size=8).digest()
    return (hashlib.blake2b(rating.prompt, digest_size=8).digest() if rating.prompt else of_rating), of_rating


async def _samples(reader: Reader, rows: Iterable[sqlite3.Row]) -> list[RunSample]:
    rated = [(to_rating(row), row["split"] == "held") for row in rows]
    whole = await completions.load(reader, [rating.completion_id for rating, _ in rated])
    return [
        RunSample(rating, whole[rating.completion_id], whole[rating.completion_id].new.prompt, is_held)
        for rating, is_held in rated
        if rating.completion_id in whole  # forgotten between the two reads
    ]


class SampleStore(StorePart):
    async def fresh(
        self,
        *,
        live: int,
        max_version_gap: int,
        before_run: int | None = None,
        foreign: bool = False,
        share: float = 1.0,
        raters: Mapping[str, float] = NOBODY,
        judge_share: float = 0.5,
        line: str = COMMON,
    ) -> Fresh:
        """Ratings that a run of this line could take. `share` bounds each rater, by the weights of their ratings and
        of `raters`.

        `before_run`: only those that were there when that run took its own. By their order: a clock may be set back.
        """
        near = await line_reach.load(self._reader, line, live, max_version_gap)
        parameters = {"run": before_run, "foreign": foreign, "line": line, **near.parameters()}
        rows = await self._reader.rows(
            f"""SELECT rater, total(near AND value > 0) AS good, total(near AND value < 0) AS bad,
            total(near AND value = 0) AS neutral, total(NOT near) AS stale
            FROM (SELECT r.rater, r.value, {NEAR} AS near {FRESH} AND {_BEFORE_RUN}) w GROUP BY rater""",  # noqa: S608  constants of this module
            parameters,
        )
        waiting: Counter[str] = Counter()
        from_judges = 0
        judged = judge_share < 1 and any(is_judge(row["rater"]) for row in rows)
        if judged or (share < 1 and any(row["rater"] != OWNER for row in rows)):
            recent_totals = await load_recent_voices(self._reader, raters, line)
            candidate_rows = await self._reader.rows(
                f"SELECT {CANDIDATE} {FRESH} AND {NEAR} AND {_BEFORE_RUN} ORDER BY r.seq DESC", parameters
            )
            candidates = _candidates(candidate_rows, raters)
            admitted = await asyncio.to_thread(within, candidates, share, recent_totals) if share < 1 else candidates
            from_judges, admitted = len(of_judges(admitted)), within_judges(admitted, judge_share)
            waiting = Counter(candidate.rater for candidate in candidates) - Counter(
                candidate.rater for candidate in admitted
            )
        good, bad, neutral, stale = (
            int(sum(row[kind] for row in rows)) for kind in ("good", "bad", "neutral", "stale")
        )
        return Fresh(good, bad, neutral, stale, dict(waiting), from_judges)

    async def untrainable(self) -> dict[str, int]:
        """Live ratings of completions that never train, by why."""
        rows = await self._reader.rows(
            """SELECT c.untrainable AS why, count(*) AS count FROM ratings r CROSS JOIN completions c
            ON c.id = r.completion_id WHERE r.live = 1 AND c.untrainable IS NOT NULL GROUP BY c.untrainable"""
        )
        flagged = await self._reader.row(
            """SELECT count(*) AS count FROM flags f CROSS JOIN ratings r ON r.completion_id = f.completion_id
            WHERE +r.live = 1 AND r.value > 0"""
        )
        counts = {row["why"]: row["count"] for row in rows}
        return counts | ({"flagged": flagged["count"]} if flagged is not None and flagged["count"] else {})

    async def claim(self, requirements: SampleRequirements) -> Run | None:
        """Do `claim` of this module; None, too, where the live version is gone."""

        def take(db: sqlite3.Connection) -> Run | None:
            if not unlearning.may_claim(db, requirements.live):
                return None
            claimed = claim(db, requirements)
            if claimed is not None and requirements.rebuilds:
                unlearning.claimed(db, claimed.id)
            return claimed

        return await self._writer.submit(take)

    async def returned_ratings(
        self, of: Rebuild, *, live: int, max_version_gap: int, foreign: bool, line: str = COMMON
    ) -> tuple[int, int]:
        """Ratings of a line that the runs of a rebuild gave back and no run has taken since: that could train, and too
        old."""
        near = await line_reach.load(self._reader, line, live, max_version_gap)
        row = await self._reader.row(
            f"""SELECT total(near) AS near, total(NOT near) AS stale FROM (SELECT {NEAR} AS near {FRESH}
            AND {GIVEN_BACK}) w""",  # noqa: S608  constants of this module
            {
                "foreign": foreign,
                "line": line,
                "runs": orjson.dumps(sorted(of.runs)).decode(),
                **near.parameters(),
            },
        )
        assert row is not None  # an aggregate always has one
        return int(row["near"]), int(row["stale"])

    async def of_run(self, run_id: int) -> list[RunSample]:
        rows = await self._reader.rows(
            """SELECT r.*, s.split FROM run_samples s JOIN ratings r ON r.id = s.rating_id
            WHERE s.run_id = ? ORDER BY r.seq DESC""",
            (run_id,),
        )
        return await _samples(self._reader, rows)

    async def recent_held(self, model: str, limit: int, line: str = COMMON) -> list[RunSample]:
        """Samples that earlier runs of this model and line held back, nobody took back and no later rating has brought
        into training since. Each is there once, also where two runs hold it back. Not those of another base: their ids
        are of its tokenizer."""
        rows = await self._reader.rows(
            """SELECT r.*, s.split FROM runs u CROSS JOIN run_samples s ON s.run_id = u.id
            CROSS JOIN ratings r ON r.id = s.rating_id
            WHERE u.status = 'done' AND u.retrains = 0 AND u.model = ? AND u.line = ?
            AND s.split = 'held' AND r.live = 1
            AND NOT EXISTS (SELECT 1 FROM ratings x CROSS JOIN run_samples t ON t.rating_id = x.id
                            CROSS JOIN runs v ON v.id = t.run_id
                            WHERE x.completion_id = r.completion_id AND v.retrains = 0
                            AND (t.split = 'train' OR (t.rating_id = s.rating_id AND t.run_id > s.run_id))
                            AND v.status IN ('claimed', 'running', 'done'))
            ORDER BY u.id DESC, r.seq DESC LIMIT ?""",
            (model, line, limit),
        )
        return await _samples(self._reader, rows)

    async def runs_of(self, completion_id: str) -> list[tuple[Run, str, str]]:
        """Runs that took a rating of this completion, newest first; with the split and the rating's id."""
        rows = await self._reader.rows(
            """SELECT u.*, s.split, s.rating_id FROM ratings r CROSS JOIN run_samples s ON s.rating_id = r.id
            CROSS JOIN runs u ON u.id = s.run_id WHERE r.completion_id = ? ORDER BY u.id DESC""",
            (completion_id,),
        )
        return [(to_run(row), row["split"], row["rating_id"]) for row in rows]
