"""How much of a run one rater may be: pure numbers.

Owns the bound of `train.max_rater_share`. The owner is not bounded, nor is whoever is the only one to rate: for one
person alone there is no bound at all. Not here: which ratings are taken within it (learning).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OWNER: Final = "owner"  # the rater where nobody says who speaks: one person, one machine
FEW: Final = 4  # live ratings of others below which somebody counts as alone: a trial does not stop a run
RECENT_S: Final = 30 * 86400.0  # in which those were given


def caps(counts: Mapping[str, int], share: float, others: Mapping[str, int]) -> dict[str, int]:
    """The most ratings that a run may take of each rater, where that is fewer than there are.

    `counts` are those that it could take, `others` all recent live ratings by rater: who floods a run in which nobody
    else has anything new is not alone for that.
    """
    if share >= 1:
        return {}
    everybody = sum(others.values())
    bounded = {r for r in counts if r != OWNER and everybody - others.get(r, 0) >= FEW}
    kept = dict(counts)
    while True:
        total = sum(kept.values())
        # The largest first: what it loses makes the share of all others larger.
        over = max((r for r in bounded if kept[r] > share * total), key=lambda r: (kept[r], r), default=None)
        if over is None:
            return {r: kept[r] for r in counts if kept[r] < counts[r]}
        kept[over] = min(kept[over] - 1, int(share / (1 - share) * (total - kept[over])))
