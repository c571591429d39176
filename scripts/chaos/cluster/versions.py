"""Swaps: how soon a version was at all replicas, and which versions conversations saw."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any, Final, NamedTuple

import psycopg

from scripts.chaos.cluster.clients import Answer, Ledger
from scripts.chaos.cluster.faults import Fault
from scripts.chaos.cluster.machines import Cluster

LOOK_S: Final = 0.25
HIDING: Final = re.compile("the database|the learner is cut off")  # in a fault's name: relays do not hear of swaps
LIMIT_S: Final = 5.0  # from going live until all replicas have a version, and all relays answer with it


class Swap(NamedTuple):
    version: int
    live: float  # epoch seconds, when the pointer moved
    lag_s: float | None  # until every replica had it from every relay; None: it did not, as a newer one came
    is_calm: bool  # nothing befell the machines LIMIT_S before and after


class SwapWatch:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.moves: dict[int, float] = {}  # when each version went live

    async def run(self) -> None:
        """Look at the live pointer, for ever."""
        while True:
            with contextlib.suppress(psycopg.Error):
                rows = await asyncio.to_thread(
                    self._cluster.server.execute, "SELECT live, changed_at FROM rlproxy.pointer", self._cluster.database
                )
                for version, changed_at in rows:
                    if version:
                        self.moves.setdefault(version, changed_at)
            await asyncio.sleep(LOOK_S)

    def swaps(self, faults: list[Fault]) -> list[Swap]:
        return [
            Swap(version, live, self._lag(version, live), is_calm(faults, live)) for version, live in self.moves.items()
        ]

    def _lag(self, version: int, live: float) -> float | None:
        loads = [replica.loads.get(name) for replica in self._cluster.replicas for name in self._cluster.names(version)]
        return None if None in loads else max(0.0, max(load - live for load in loads if load is not None))


def is_calm(faults: list[Fault], moment: float) -> bool:
    return not any(fault.began < moment + LIMIT_S and fault.ended > moment - LIMIT_S for fault in faults)


def problems(swaps: list[Swap], ledger: Ledger, cluster: Cluster, befallen: list[Fault]) -> list[str]:
    """Replicas that got a version late or never, and answers of a version that was not live any more. `befallen`: what
    befell the machines."""
    faults = [
        f"v{swap.version} was not at all replicas {LIMIT_S:g} s after it went live ({swap.lag_s})"
        for swap in swaps
        if swap.is_calm and (swap.lag_s is None or swap.lag_s > LIMIT_S)
    ]
    for swap in swaps:
        late = [a for a in ledger.answers if a.version < swap.version and a.began > swap.live + LIMIT_S]
        if swap.is_calm and late:
            faults.append(f"{len(late)} answers of an older version {LIMIT_S:g} s after v{swap.version} went live")
    if swaps:
        newest = cluster.names(max(swap.version for swap in swaps))
        for replica in cluster.replicas:
            faults += [f"{replica.url} lacks {name} in the end" for name in newest if name not in replica.adapters]
    return faults + mixed(ledger, befallen)


def mixed(ledger: Ledger, faults: list[Fault]) -> list[str]:
    """Conversations that went back to an older version, and answers of other weights than their header says."""
    lies = [
        f"{answer.id} says v{answer.version} and is of v{answer.served}"
        for answer in ledger.answers
        if answer.version != answer.served
    ]
    return lies + [
        f"conversation {answers[0].conversation} went back: {', '.join(map(_outline, answers))}"
        for turn, answers in _returns(ledger)
        if not hides_swaps(faults, turn.began)
    ]


def _returns(ledger: Ledger) -> list[tuple[Answer, list[Answer]]]:
    """First turn of each conversation that is of an older version than the turn before, and all of its turns."""
    conversations: dict[str, list[Answer]] = defaultdict(list)
    for answer in ledger.answers:
        conversations[answer.conversation].append(answer)
    first = ((next((b for a, b in pairwise(turns) if b.version < a.version), None), turns)
             for turns in conversations.values())  # fmt: skip
    return [(turn, turns) for turn, turns in first if turn is not None]


def hides_swaps(faults: list[Fault], moment: float) -> bool:
    """Tell whether a relay that answers now may not know of a swap, as the database was away until LIMIT_S before."""
    return any(HIDING.search(f.name) and f.began < moment < f.ended + LIMIT_S for f in faults)


def _outline(answer: Answer) -> str:
    return f"v{answer.version} at {time.strftime('%H:%M:%S', time.gmtime(answer.began))} by relay {answer.relay}"


def summary(swaps: list[Swap], ledger: Ledger, faults: list[Fault]) -> dict[str, Any]:
    turns: dict[str, set[int]] = defaultdict(set)
    for answer in ledger.answers:
        turns[answer.conversation].add(answer.version)
    lags = {calm: [s.lag_s for s in swaps if s.is_calm is calm and s.lag_s is not None] for calm in (True, False)}
    return {
        "swaps": len(swaps),
        "swaps_in_calm": sum(swap.is_calm for swap in swaps),
        "swap_lag_s_in_calm": _spread(lags[True]),
        "swap_lag_s_under_faults": _spread(lags[False]),
        "swaps_overtaken": sum(swap.lag_s is None for swap in swaps),
        "conversations": len(turns),
        "conversations_over_a_swap": sum(len(versions) > 1 for versions in turns.values()),
        "conversations_back_without_the_database": sum(hides_swaps(faults, turn.began) for turn, _ in _returns(ledger)),
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 2), "max": round(max(values), 2), "n": len(values)}
