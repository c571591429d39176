"""Sums of all ratings: the votes on one version, and what ratings are like on the whole.

Owns that a rating counts as much as its voice here too. One rater is no more of it than of a run, by the same bound
(`rater_quota`). Not here: what is compared with what (proxy.versions.rollback_monitor), what is made of a mean
(proxy.training.rewards).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from store.file.part import StorePart
from store.learning.rater_quota import (
    FEW,
    FULL_VOICE,
    LEAST_WEIGHT,
    MOST_WEIGHT,
    OWNER,
    ROUNDED,
    QuotaCandidate,
    voice,
    within,
)
from store.learning.samples import NOBODY, load_recent_voices
from store.line_records import COMMON
from store.records import Vote


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the values of all live ratings by their voices, for mean and deviation."""

    count: float
    sum: float
    squares: float


def _voices(candidates: Sequence[QuotaCandidate]) -> dict[str, float]:
    voices: defaultdict[str, float] = defaultdict(float)
    for candidate in candidates:
        voices[candidate.rater] += min(candidate.weight, FULL_VOICE)
    return voices


def _whole(candidates: Sequence[QuotaCandidate], first: Mapping[str, int]) -> list[Vote]:
    """The test compares whole votes: light ones wait until they make one together with others that say the same."""
    opinion: defaultdict[str, float] = defaultdict(float)
    weight: defaultdict[str, float] = defaultdict(float)
    for candidate in candidates:
        opinion[candidate.completion_id] += candidate.value * candidate.weight
        weight[candidate.completion_id] += candidate.weight
    votes, waiting = [], {True: 0.0, False: 0.0}
    for id in sorted(opinion, key=lambda id: first[id]):
        if opinion[id] == 0:
            continue
        good = opinion[id] > 0
        waiting[good] += min(weight[id], FULL_VOICE)
        if waiting[good] * ROUNDED >= FULL_VOICE:
            waiting[good] -= FULL_VOICE
            votes.append(Vote(first[id], good))
    return votes


class OpinionStore(StorePart):
    async def votes(
        self,
        version: int,
        share: float = 1.0,
        raters: Mapping[str, float] = NOBODY,
        *,
        version_only: bool = False,
        line: str = COMMON,
    ) -> list[Vote]:
        """One whole vote for each rated main turn of that version in that line, oldest first; none where the raters
        cancel out.

        `share` bounds each rater. `version_only`: only this version's ratings are weighed, so its only rater is heard.
        """
        rows = await self._reader.rows(
            """SELECT r.seq, r.id, r.completion_id, r.value, r.rater, r.weight
            FROM ratings r CROSS JOIN completions c ON c.id = r.completion_id
            WHERE r.live = 1 AND r.human = 1 AND c.version = ? AND +c.line = ? AND c.turn = 'main'
            ORDER BY r.seq""",
            (version, line),
        )
        first: dict[str, int] = {}
        candidates = []
        for seq, id, completion, value, rater, weight in rows:
            first.setdefault(completion, seq)
            candidates.append(QuotaCandidate(id, completion, value, rater, voice(weight, raters.get(rater, 1.0))))
        if share < 1 and any(candidate.rater != OWNER for candidate in candidates):
            company = _voices(candidates) if version_only else await load_recent_voices(self._reader, raters, line)
            candidates = await asyncio.to_thread(within, candidates, share, company)
        return _whole(candidates, first)

    async def moments(self, share: float = 1.0, raters: Mapping[str, float] = NOBODY, line: str = COMMON) -> Moments:
        """Figures of all live ratings of a line. A rater above the share counts for as much as the share allows beside
        all others."""
        rows = await self._reader.rows(
            """SELECT rater, total(weight) AS count, total(value * weight) AS sum,
            total(value * value * weight) AS squares
            FROM (SELECT r.rater, r.value, max(min(r.weight, ?), ?) AS weight FROM ratings r
            CROSS JOIN completions c ON c.id = r.completion_id
            WHERE r.live = 1 AND r.human = 1 AND c.line = ?) w GROUP BY rater""",
            (MOST_WEIGHT, LEAST_WEIGHT, line),
        )
        weights: dict[str, float] = {row["rater"]: row["count"] * raters.get(row["rater"], 1.0) for row in rows}
        everybody = sum(weights.values())
        recent_voices = {} if share >= 1 else await load_recent_voices(self._reader, raters, line)

        def part(rater: str) -> float:
            """Worth of one unit of the rater's weight."""
            of_rater, remaining_weight = raters.get(rater, 1.0), everybody - weights[rater]
            company = sum(recent_voices.values()) - recent_voices.get(rater, 0.0)
            if rater == OWNER or company < FEW or weights[rater] <= share * everybody:
                return of_rater
            return of_rater * remaining_weight * share / (1 - share) / weights[rater]

        parts = [(part(row["rater"]), row) for row in rows]
        return Moments(*(sum(each * row[of] for each, row in parts) for of in ("count", "sum", "squares")))
