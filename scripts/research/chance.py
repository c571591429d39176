"""Which tastes do 32 and 64 ratings show, and how often do ratings drawn at random pass? No training, no model.

    python -m scripts.research.chance [--draws 60]

Tastes are applied to the replies of the pool (reply_pool), with and without mistakes, drawn anew each time. They are
tested as a run tests them (trainer.run.permutation_test). Writes benchmarks/chance.json; the table is in
docs/lab/learning-rules.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable

from scripts.bench.persona import ROOT, Chat
from scripts.harness.circumstances import circumstances
from scripts.research.poisoned import draw
from scripts.research.reply_pool import PoolReply, pool
from trainer.formats import weights
from trainer.run import permutation_test
from trainer.run.permutation_test import RatedReply

TASTES: dict[str, Callable[[PoolReply], bool]] = {
    "ends by itself": lambda answer: answer.reply.ended,
    "goes over several lines": lambda answer: "\n" in answer.reply,
    'begins with "The"': lambda answer: answer.reply.startswith("The "),
    'has the word "you"': lambda answer: " you" in answer.reply.lower(),
    "has no list": lambda answer: not permutation_test.LIST_LINE.search(answer.reply),
    "at most 40 words": lambda answer: answer.reply.ended and len(answer.reply.split()) <= 40,
}
BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60, help="of each taste; three times as many at random")
    arguments = parser.parse_args()
    permutation_test.SHUFFLES = 1999  # a run takes more; p is known well enough for a share over many draws
    replies = pool(Chat(weights.resolve(None).path, threads=1))
    about, rows = circumstances(), list[dict[str, object]]()
    for count in (32, 64):
        for name, likes in TASTES.items():
            for mistakes in (0.0, 0.1):
                rows.append(row(replies, name, likes, count, mistakes, arguments.draws))
        rows.append(row(replies, "none: a fair coin", lambda answer: False, count, 0.5, 3 * arguments.draws))
    about |= {
        "model": weights.resolve(None).path.name,
        "shuffles": permutation_test.SHUFFLES,
        "rows": rows,
    }
    (ROOT / "benchmarks/chance.json").write_text(json.dumps(about, indent=1) + "\n")


def row(
    replies: list[PoolReply], name: str, likes: Callable[[PoolReply], bool], count: int, mistakes: float, draws: int
) -> dict[str, object]:
    """The share of draws whose p is at most each bound; draws of one sign only count as not let through."""
    p_values = []
    for number in range(draws):
        rng = random.Random(f"{name} {number}")
        rated = [
            RatedReply(
                str(answer.reply), len(answer.tokens.reply), answer.reply.ended, reward(likes(answer), rng, mistakes)
            )
            for answer in draw(replies, rng, count)
        ]
        has_both_signs = len({rating.reward for rating in rated}) > 1
        p_values.append(permutation_test.p_value(rated) if has_both_signs else 1.0)
    shares = {str(bound): sum(p <= bound for p in p_values) / draws for bound in BOUNDS}
    liked = sum(likes(answer) for answer in replies) / len(replies)
    record = {"taste": name, "liked": round(liked, 3), "ratings": count, "mistakes": mistakes, "draws": draws}
    print(record, shares, flush=True)
    return record | {"let_through": shares, "p": [round(p, 4) for p in p_values]}


def reward(liked: bool, rng: random.Random, mistakes: float) -> float:
    return 1.0 if liked ^ (rng.random() < mistakes) else -1.0


if __name__ == "__main__":
    main()
