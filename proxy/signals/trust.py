"""How far a judge agrees with people: Cohen's kappa with its interval, and whether that is enough to train.

Owns the numbers of the release: a sliding window of shared turns, the fewest of them, and the bound. Each side is
measured by itself, and what a judge abstains on counts as not found: a judge that misses much is not trusted either.
The interval is that of the posterior, and not of a bootstrap: of fifteen turns that all agree, a bootstrap draws no
other. Pure, and the same for the same pairs: the draws have a fixed seed. Not here: which turns are shared
(store.learning.signals).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from proxy.signals.bodies import AgreementBody

WINDOW: Final = 60  # the newest shared turns: a judge that turns random is found out within 50 of them
FEWEST: Final = 15  # shared turns: some days of rating; how often this errs is in docs/lab/signals.md
EACH: Final = 4  # of each class, as people rated them
LEAST_KAPPA: Final = 0.4  # that the lower bound must reach
MOST_WEIGHT: Final = 0.5  # of a judged turn, where a person's rating weighs 1
DRAWS: Final = 2000
PRIOR: Final = 0.5  # turns in each cell before any was seen: Jeffreys' prior of a multinomial
UNSEEN: Final = 200  # labels since a person last rated a turn that it had labelled: nobody looks any more
TAIL: Final = 0.025  # on either side: a 95 % interval

Pair = tuple[float, float]  # the person's value and the judge's; 0 of the judge is an abstention
Side = Literal["bad", "good"]


class Agreement(NamedTuple):
    """On one side, of a window of shared turns: do both find the answer bad, or good? By person, then judge."""

    side: Side
    both: int
    person_only: int  # missed by the judge
    judge_only: int  # claimed by the judge alone
    neither: int
    kappa: float
    low: float
    high: float
    reason: str | None  # why such labels do not train; None: they may

    @property
    def shared(self) -> int:
        return self.both + self.person_only + self.judge_only + self.neither

    @property
    def trusted(self) -> bool:
        return self.reason is None

    @property
    def weight(self) -> float:
        """Weight of one judged turn in training: at most half of a person's, and no more than kappa."""
        return max(0.0, min(MOST_WEIGHT, self.kappa))

    def body(self) -> AgreementBody:
        shared_count = self.shared
        return {
            "shared": shared_count,
            "needed": FEWEST,
            "table": {
                "both": self.both,
                "person_only": self.person_only,
                "judge_only": self.judge_only,
                "neither": self.neither,
            },
            "agreement": (self.both + self.neither) / shared_count if shared_count else None,
            "kappa": self.kappa if shared_count else None,
            "interval": [self.low, self.high] if shared_count else None,
            "trusted": self.trusted,
            "weight": self.weight if self.trusted else 0.0,
            "why": self.reason,
        }


class Trust(NamedTuple):
    """In a judge's labels, one side at a time: who finds complaints may still know nothing of success."""

    bad: Agreement
    good: Agreement

    def of(self, value: float) -> Agreement:
        return self.bad if value < 0 else self.good

    @property
    def trusted(self) -> bool:
        return self.bad.trusted or self.good.trusted


def trust(pairs: Sequence[Pair], unseen: int = 0) -> Trust:
    """Agreement on shared turns, newest first: the window's. A turn on which people cancel out is none. `unseen`:
    labels that train since the newest of them, which people have not looked at."""
    window = [pair for pair in pairs if pair[0] != 0][:WINDOW]
    bad = [(person < 0, judge < 0) for person, judge in window]
    good = [(person > 0, judge > 0) for person, judge in window]
    agreements = Trust(_side("bad", bad), _side("good", good))
    if unseen <= UNSEEN:
        return agreements
    reason = f"{unseen} labels since a person last rated such a turn, and {UNSEEN} are the most: rate one or two"
    return Trust(*(side._replace(reason=side.reason or reason) for side in agreements))


def _side(side: Side, pairs: Sequence[tuple[bool, bool]]) -> Agreement:
    return _agreement(side, tuple(pairs.count(cell) for cell in _CELLS))


_CELLS: Final = ((True, True), (True, False), (False, True), (False, False))


@lru_cache(maxsize=256)
def _agreement(side: Side, cells: tuple[int, ...]) -> Agreement:
    both, person_only, judge_only, neither = cells
    low, high = interval(cells)
    reason = _untrusted_reason(side, sum(cells), both + person_only, judge_only + neither, low)
    return Agreement(side, both, person_only, judge_only, neither, kappa(cells), low, high, reason)


def kappa(cells: Sequence[float]) -> float:
    """Cohen (1960): (p_o - p_e) / (1 - p_e), of counts or shares. 0 where one of the two always says the same."""
    both, person_only, judge_only, neither = cells
    n = sum(cells)
    if not n:
        return 0.0
    observed = (both + neither) / n
    person, judge = (both + person_only) / n, (both + judge_only) / n
    expected = person * judge + (1 - person) * (1 - judge)
    return (observed - expected) / (1 - expected) if expected < 1 else 0.0


def interval(cells: Sequence[int]) -> tuple[float, float]:
    """Equal-tailed 95 % interval of kappa's posterior, the four shares drawn from Dirichlet(cells + PRIOR)."""
    if not sum(cells):
        return -1.0, 1.0
    draw = random.Random(sum(cells))  # noqa: S311  no secret
    kappas = sorted(kappa([draw.gammavariate(cell + PRIOR, 1.0) for cell in cells]) for _ in range(DRAWS))
    return kappas[int(TAIL * DRAWS)], kappas[int((1 - TAIL) * DRAWS) - 1]


def _untrusted_reason(side: Side, shared: int, on_side: int, off_side: int, low: float) -> str | None:
    if shared < FEWEST:
        return f"{shared} of {FEWEST} turns that a person has rated, too"
    if min(on_side, off_side) < EACH:
        good, bad = (on_side, off_side) if side == "good" else (off_side, on_side)
        return f"people must have rated {EACH} of each kind among them: {good} good, {bad} bad"
    if low < LEAST_KAPPA:
        return f"the lower bound of kappa is {low:.2f}, and {LEAST_KAPPA:g} is needed"
    return None
