"""How many ratings a critic needs that asks first about what it cannot tell; nothing trains.

    python -m scripts.research.critic_states --replies 480     first, once
    python -m scripts.research.ask_order [--splits 20]

Half of the conversations may be asked about, twelve replies a round; the critic is judged on the other half.
"Informative" is the inbox's order: nearest to even odds first, every fifth at random. "Newest" knows nothing of the
replies. Writes benchmarks/ask_order.json: the AUC by ratings, and the share of ratings after which the inbox's order
is where the other is with all of them.
"""

from __future__ import annotations

import argparse
import json
import zlib
from typing import Any

import numpy as np

from scripts.bench.persona import ROOT
from scripts.harness.circumstances import circumstances
from scripts.research import critic_states
from scripts.research.critic_auc import tastes
from trainer.lessons import critic
from trainer.lessons.critic import Labels
from trainer.mis_po import Floats

FIRST, EACH, MOST = 24, 12, 120
AT_RANDOM = 5  # every fifth


def curve(known: Labels, seed: int, *, informative: bool) -> list[tuple[int, float]] | None:
    """AUC on the other half after each round of ratings; None where one half has replies of one kind only."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.unique(known.group))
    own = np.isin(known.group, groups[: len(groups) // 2])
    pool, rest = rng.permutation(np.flatnonzero(own)), np.flatnonzero(~own)
    if len(set(known.sign[rest])) < 2 or len(set(known.sign[pool[:FIRST]])) < 2:
        return None
    rated, left = list(pool[:FIRST]), list(pool[FIRST:])
    found = []
    while True:
        made = known.rows(np.array(rated))
        found.append((len(rated), critic.auc(critic.predict(made, known.features[rest], seed), known.sign[rest])))
        if len(rated) >= MOST or len(left) < EACH:
            return found
        if informative:
            left = _inbox_order(made, known, left)
        rated, left = rated + left[:EACH], left[EACH:]
        left = list(rng.permutation(left))


def _inbox_order(made: Labels, known: Labels, left: list[int]) -> list[int]:
    unsure = [left[at] for at in np.argsort(np.abs(critic.predict(made, known.features[left], 0)))]
    chance = [one for one in left if one in set(unsure[EACH:])]  # `left` is in random order
    first = unsure[: EACH - EACH // AT_RANDOM] + chance[: EACH // AT_RANDOM]
    return first + [one for one in left if one not in set(first)]


def needed(informative: Floats, newest: Floats, counts: list[int]) -> float | None:
    """Share of all ratings after which the inbox's order has the AUC that the other has at its end; None: never."""
    at = np.flatnonzero(informative >= newest[-1])
    return counts[at[0]] / counts[-1] if len(at) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    asked = parser.parse_args()
    mean, last, said = critic_states.read()
    features = np.concatenate([mean, last], 1)
    length = np.log([1 + one["tokens"] for one in said])
    group = np.array([zlib.crc32(one["prompt"].encode()) for one in said], np.int64)
    table: dict[str, Any] = {}
    for name, rate in tastes().items():
        known = Labels(features, length, np.array([rate(one) for one in said]), group, np.zeros(len(said), int))
        both = [
            (a, b)
            for seed in range(asked.splits)
            if (a := curve(known, seed, informative=True)) and (b := curve(known, seed, informative=False))
        ]
        if not both:
            continue
        counts = [count for count, _ in both[0][0]]
        of = [np.mean([[area for _, area in pair[side]] for pair in both], 0) for side in (0, 1)]
        table[name] = {
            "liked": float((known.sign > 0).mean()), "splits": len(both), "ratings": counts,
            "informative": of[0].round(4).tolist(), "newest": of[1].round(4).tolist(),
            "needed": needed(of[0], of[1], counts),
        }  # fmt: skip
        print(name, json.dumps(table[name]), flush=True)
    about = {**circumstances(), "replies": len(said), "tastes": table}
    (ROOT / "benchmarks/ask_order.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
