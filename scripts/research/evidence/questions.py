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
QuestionReply = tuple[str, RatedReply]  # a question and its reply
CAUSES: Final = ("why", "how")


TASTES: Final[dict[str, Callable[[QuestionReply], bool | float]]] = {
    "ends by itself": lambda pair: pair[1].ended,
    'has the word "you"': lambda pair: " you" in pair[1].text.lower(),
    "has no list": lambda pair: not permutation_test.LIST_LINE.search(pair[1].text),
    "several lines where why or how, else one": lambda pair: (
        ("\n" in pair[1].text) == pair[0].lower().startswith(CAUSES)
    ),
    'the word "you" where why or how, else none': lambda pair: (
        (" you" in pair[1].text.lower()) == pair[0].lower().startswith(CAUSES)
    ),
    "none: a fair coin": lambda pair: 0.5,
}
SUMS: Final[dict[str, Callable[[QuestionReply], bool | float]]] = {
    "the sum is right": lambda pair: _is_right(*pair),
    "none: a fair coin": lambda pair: 0.5,
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

    def from_pool(rng: random.Random, count: int) -> list[QuestionReply]:
        return [
            (
                completion.prompt,
                RatedReply(str(completion.reply), len(completion.tokens.reply), completion.reply.ended, 0.0),
            )
            for completion in draw(replies, rng, count)
        ]

    for count in (32, 64, 120):
        for name, likes in TASTES.items():
            report["rows"].append(row(from_pool, name, likes, count, arguments.draws))
            OUT.write_text(json.dumps(report, indent=1) + "\n")


def sums(rng: random.Random, count: int) -> list[QuestionReply]:
    """Sums of two digits, 22 % of them right: what the small model answers before it has learned any."""
    pairs = []
    for _ in range(count):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        answer = a + b if rng.random() < 0.22 else a + b + rng.choice((-3, -2, -1, 1, 2, 3))
        pairs.append((f"What is {a} plus {b}?", RatedReply(f"{a} + {b} = {answer}", 8, True, 0.0)))
    return pairs


def _is_right(question: str, reply: RatedReply) -> bool:
    a, b = (int(word) for word in question.rstrip("?").split() if word.isdigit())
    return reply.text.endswith(f"= {a + b}")


def row(
    source: Callable[[random.Random, int], list[QuestionReply]],
    name: str,
    likes: Callable[[QuestionReply], bool | float],
    count: int,
    draws: int,
) -> dict[str, Any]:
    """Shares of draws whose p is at most each bound, by both ways of looking; five times the draws at random."""
    draws *= 5 if name.startswith("none") else 1
    p_values: dict[str, list[float]] = {"with questions": [], "replies alone": []}
    for number in range(draws):
        rng = random.Random(f"{name} {number}")
        pairs = source(rng, count)
        rewards = [1.0 if rng.random() < likes(each) else -1.0 for each in pairs]
        rated = [replace(reply, reward=reward) for (_, reply), reward in zip(pairs, rewards, strict=True)]
        plain_kernels = permutation_test.kernels(rated)
        kinds = {
            "replies alone": plain_kernels,
            "with questions": [*plain_kernels, *kernels_beside_questions(plain_kernels, [text for text, _ in pairs])],
        }
        for kind, kernels in kinds.items():
            has_both = len(set(rewards)) > 1
            p_values[kind].append(permutation_test.p_value_by(kernels, rewards, number) if has_both else 1.0)
    result = {"taste": name, "ratings": count, "draws": draws, "of": source.__name__}
    shares = {
        kind: {str(bound): round(sum(p <= bound for p in values) / draws, 4) for bound in BOUNDS}
        for kind, values in p_values.items()
    }
    print(result, shares, flush=True)
    return result | {"let_through": shares}


def kernels_beside_questions(
    kernels: Sequence[permutation_test.Floats], questions: Sequence[str]
) -> list[permutation_test.Floats]:
    """Each look times how alike the questions' words are."""
    words = permutation_test._word_features([list(split_words(text.lower())) for text in questions])
    return [kernel * (words @ words.T) for kernel in kernels]


if __name__ == "__main__":
    main()
