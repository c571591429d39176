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


def curve(labels: Labels, seed: int, *, informative: bool) -> list[tuple[int, float]] | None:
    """AUC on the other half after each round of ratings; None where one half has replies of one kind only."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.unique(labels.group))
    in_pool = np.isin(labels.group, groups[: len(groups) // 2])
    pool, test = rng.permutation(np.flatnonzero(in_pool)), np.flatnonzero(~in_pool)
    if len(set(labels.sign[test])) < 2 or len(set(labels.sign[pool[:FIRST]])) < 2:
        return None
    rated, waiting = list(pool[:FIRST]), list(pool[FIRST:])
    areas = []
    while True:
        training = labels.rows(np.array(rated))
        areas.append((len(rated), critic.auc(critic.predict(training, labels.features[test], seed), labels.sign[test])))
        if len(rated) >= MOST or len(waiting) < EACH:
            return areas
        if informative:
            waiting = _inbox_order(training, labels, waiting)
        rated, waiting = rated + waiting[:EACH], waiting[EACH:]
        waiting = list(rng.permutation(waiting))


def _inbox_order(training: Labels, labels: Labels, waiting: list[int]) -> list[int]:
    unsure = [waiting[index] for index in np.argsort(np.abs(critic.predict(training, labels.features[waiting], 0)))]
    chance = [reply for reply in waiting if reply in set(unsure[EACH:])]  # `waiting` is in random order
    first = unsure[: EACH - EACH // AT_RANDOM] + chance[: EACH // AT_RANDOM]
    return first + [reply for reply in waiting if reply not in set(first)]


def needed(informative: Floats, newest: Floats, counts: list[int]) -> float | None:
    """Share of all ratings after which the inbox's order has the AUC that the other has at its end; None: never."""
    reached = np.flatnonzero(informative >= newest[-1])
    return counts[reached[0]] / counts[-1] if len(reached) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    arguments = parser.parse_args()
    mean, last, replies = critic_states.read()
    features = np.concatenate([mean, last], 1)
    length = np.log([1 + reply["tokens"] for reply in replies])
    group = np.array([zlib.crc32(reply["prompt"].encode()) for reply in replies], np.int64)
    table: dict[str, Any] = {}
    for name, rate in tastes().items():
        labels = Labels(
            features, length, np.array([rate(reply) for reply in replies]), group, np.zeros(len(replies), int)
        )
        pairs = [
            (a, b)
            for seed in range(arguments.splits)
            if (a := curve(labels, seed, informative=True)) and (b := curve(labels, seed, informative=False))
        ]
        if not pairs:
            continue
        counts = [count for count, _ in pairs[0][0]]
        of = [np.mean([[area for _, area in pair[side]] for pair in pairs], 0) for side in (0, 1)]
        table[name] = {
            "liked": float((labels.sign > 0).mean()), "splits": len(pairs), "ratings": counts,
            "informative": of[0].round(4).tolist(), "newest": of[1].round(4).tolist(),
            "needed": needed(of[0], of[1], counts),
        }  # fmt: skip
        print(name, json.dumps(table[name]), flush=True)
    about = {**circumstances(), "replies": len(replies), "tastes": table}
    (ROOT / "benchmarks/ask_order.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
