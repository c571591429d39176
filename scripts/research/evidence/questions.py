"""Would the check for chance see more of a taste that depends on the question, if it looked at questions, too?

    python -m scripts.research.evidence.questions [--draws 60]

For replies to text alone. The looks of a run are compared with these and five more: each times how alike the questions'
words are. Tastes are applied to the replies of the pool (reply_pool) and to sums whose answers are drawn here. No run
trains, and no run looks so. Writes benchmarks/chance_questions.json; the table is in docs/lab/learning-rules.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from config.languages import split_words
from scripts.bench.persona import ROOT, Chat
from scripts.harness.circumstances import circumstances
from scripts.research.poisoned import draw
from scripts.research.reply_pool import pool
from trainer.formats import weights
from trainer.run import permutation_test
from trainer.run.permutation_test import RatedReply

OUT: Final = ROOT / "benchmarks/chance_questions.json"
BOUNDS: Final = (0.001, 0.01, 0.05, 0.1)
Asked = tuple[str, RatedReply]  # a question and its reply
CAUSES: Final = ("why", "how")


def is_short(reply: RatedReply) -> bool:
    return reply.ended and reply.tokens < 60


TASTES: Final[dict[str, Callable[[Asked], bool | float]]] = {
    "ends by itself": lambda asked: asked[1].ended,
    'has the word "you"': lambda asked: " you" in asked[1].text.lower(),
    "has no list": lambda asked: not permutation_test.LIST_LINE.search(asked[1].text),
    "several lines where why or how, else one": lambda asked: (
        ("\n" in asked[1].text) == asked[0].lower().startswith(CAUSES)
    ),
    'the word "you" where why or how, else none': lambda asked: (
        (" you" in asked[1].text.lower()) == asked[0].lower().startswith(CAUSES)
    ),
    "none: a fair coin": lambda asked: 0.5,
}
SUMS: Final[dict[str, Callable[[Asked], bool | float]]] = {
    "the sum is right": lambda asked: _is_right(*asked),
    "none: a fair coin": lambda asked: 0.5,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60, help="of each taste; five times as many at random")
    arguments = parser.parse_args()
    permutation_test.SHUFFLES = 999
    report: dict[str, Any] = {"circumstances": circumstances(), "shuffles": permutation_test.SHUFFLES, "rows": []}
    for count in (64, 192):
        for name, likes in SUMS.items():
            report["rows"].append(row(sums, name, likes, count, arguments.draws))
            OUT.write_text(json.dumps(report, indent=1) + "\n")
    replies = pool(Chat(weights.resolve(None).path, threads=1))

    def from_pool(rng: random.Random, count: int) -> list[Asked]:
        return [
            (said.prompt, RatedReply(str(said.reply), len(said.tokens.reply), said.reply.ended, 0.0))
            for said in draw(replies, rng, count)
        ]

    for count in (32, 64, 120):
        for name, likes in TASTES.items():
            report["rows"].append(row(from_pool, name, likes, count, arguments.draws))
            OUT.write_text(json.dumps(report, indent=1) + "\n")


def sums(rng: random.Random, count: int) -> list[Asked]:
    """Sums of two digits, 22 % of them right: what the small model answers before it has learned any."""
    asked = []
    for _ in range(count):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        answer = a + b if rng.random() < 0.22 else a + b + rng.choice((-3, -2, -1, 1, 2, 3))
        asked.append((f"What is {a} plus {b}?", RatedReply(f"{a} + {b} = {answer}", 8, True, 0.0)))
    return asked


def _is_right(question: str, reply: RatedReply) -> bool:
    a, b = (int(word) for word in question.rstrip("?").split() if word.isdigit())
    return reply.text.endswith(f"= {a + b}")


def row(
    source: Callable[[random.Random, int], list[Asked]],
    name: str,
    likes: Callable[[Asked], bool | float],
    count: int,
    draws: int,
) -> dict[str, Any]:
    """Shares of draws whose p is at most each bound, by both ways of looking; five times the draws at random."""
    draws *= 5 if name.startswith("none") else 1
    p_values: dict[str, list[float]] = {"with questions": [], "replies alone": []}
    for number in range(draws):
        rng = random.Random(f"{name} {number}")
        asked = source(rng, count)
        rewards = [1.0 if rng.random() < likes(each) else -1.0 for each in asked]
        rated = [replace(reply, reward=reward) for (_, reply), reward in zip(asked, rewards, strict=True)]
        alone = permutation_test.kernels(rated)
        kinds = {"replies alone": alone, "with questions": [*alone, *beside(alone, [text for text, _ in asked])]}
        for kind, kernels in kinds.items():
            has_both = len(set(rewards)) > 1
            p_values[kind].append(permutation_test.p_value_by(kernels, rewards, number) if has_both else 1.0)
    made = {"taste": name, "ratings": count, "draws": draws, "of": source.__name__}
    shares = {
        kind: {str(bound): round(sum(p <= bound for p in values) / draws, 4) for bound in BOUNDS}
        for kind, values in p_values.items()
    }
    print(made, shares, flush=True)
    return made | {"let_through": shares}


def beside(kernels: Sequence[permutation_test.Floats], questions: Sequence[str]) -> list[permutation_test.Floats]:
    """Each look times how alike the questions' words are."""
    words = permutation_test._word_features([list(split_words(text.lower())) for text in questions])
    return [kernel * (words @ words.T) for kernel in kernels]


if __name__ == "__main__":
    main()
