"""Benefit of the ratings: the versions beside the base, for which nobody had to rate anything.

Owns three comparisons, each left out where too little is known for it. One is the liked share on the same prompts,
where people rated an answer of both. One is how many ratings it took to come near the best version. One is base and
live version on the user's own checks, by the newest evaluation. The base with examples in its prompt is there, too,
where it was asked. Not here: the shares by version alone (progress).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from proxy.checks import results
from proxy.checks.statistics import mcnemar
from proxy.core.version_names import SHOWN_EXAMPLES
from store.copies.read_only import ReadOnlyStore
from store.records import BASE
from store.store import Store

NEAR: Final = 0.95  # of the best version's share
FEW: Final = 8  # rated answers of a version, below which its share is not the best one


class SamePrompts(NamedTuple):
    """A version and the base on the prompts of which people rated an answer of both."""

    version: int
    prompts: int
    base_liked: int
    liked: int
    better: int
    worse: int

    @property
    def p(self) -> float:
        """The p of so uneven a split, were both alike."""
        return mcnemar(self.better, self.worse)


class Adaptation(NamedTuple):
    """The best version by its liked share, and the first one that came near it."""

    best: int
    share: float
    version: int
    ratings: int  # that people had given when that one was made


async def benefit(
    store: Store | ReadOnlyStore, shares: Sequence[Mapping[str, Any]], home: Path | None
) -> dict[str, Any]:
    """For the template; `shares` as the page shows them by version."""
    pointer = await store.versions.pointer()
    recent = await asyncio.to_thread(results.recent, home, results.MOST_KEPT) if home is not None else []
    return {
        "same_prompts": [SamePrompts(**row) for row in await store.stats.same_prompts()],
        "adaptation": await _adaptation(store, shares),
        "own_checks": base_against(recent, pointer.live),
    }


async def _adaptation(store: Store | ReadOnlyStore, shares: Sequence[Mapping[str, Any]]) -> Adaptation | None:
    """None where no version beside the base has enough ratings, the base has too few itself, or there are two bases."""
    if len({adapter.model for adapter in await store.versions.all()}) > 1:
        return None
    candidates = sorted((each for each in shares if each["rated"] >= FEW), key=lambda each: int(each["version"]))
    if len(candidates) < 2 or candidates[0]["version"] != BASE:
        return None
    best = max(candidates, key=lambda each: (each["share"], -each["version"]))
    first = next(each for each in candidates if each["share"] >= NEAR * best["share"])
    adapter = await store.versions.get(first["version"]) if first["version"] else None
    ratings = await store.stats.ratings_before(adapter.created_at) if adapter is not None else 0
    return Adaptation(best["version"], best["share"], first["version"], ratings)


def base_against(summaries: Sequence[Mapping[str, Any]], live: int) -> dict[str, Any] | None:
    """The newest evaluation that asked both the base and the live version."""
    for summary in summaries if live else ():
        shares = {each["version"]: each["all"] for each in summary["versions"]}
        pairs = {(pair["first"], pair["second"]): pair for pair in summary["comparisons"]}
        if (pair := pairs.get((BASE, live))) is not None:
            checks = {"file": summary["file"], "base": shares[BASE], "live": shares[live], "version": live, **pair}
            return {**checks, "examples": shares.get(SHOWN_EXAMPLES), "shown": pairs.get((SHOWN_EXAMPLES, live))}
    return None
