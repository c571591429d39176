"""Which tastes do ratings of answers about pictures show, and how often do ratings drawn at random pass?

    python -m scripts.research.evidence.pictures --toy FOLDER [--draws 60]

Answers are those of the toy that `scripts.models.colours` has trained (`--toys` keeps it) to questions about pictures
of two colours. Ratings are drawn anew each time, tested as a run tests them, and once more by the looks of replies
alone, as before. No run trains. Writes benchmarks/chance_pictures.json; the table is in docs/lab/images.md.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import circumstances
from scripts.models.colours import ASKS_TALK, BLUNT, NAMES, POLITE, Toy, chat_about, is_liked, picture
from trainer.run import permutation_test
from trainer.run.permutation_test import RatedReply

OUT: Final = Path(__file__).resolve().parents[3] / "benchmarks" / "chance_pictures.json"
ANSWERS: Final = 480
BOUNDS: Final = (0.001, 0.01, 0.05, 0.1)
COUNTS: Final = (32, 64, 192)


@dataclass(frozen=True)
class Answer:
    colour: str
    text: str
    reply: RatedReply


# Of tastes for nothing the value is a share of likes, drawn for each answer.
TASTES: Final[dict[str, Callable[[Answer], bool | float]]] = {
    "polite where red, blunt where blue": lambda answer: is_liked(answer.colour, answer.text),
    "polite, whatever the picture": lambda answer: answer.text.strip() in POLITE,
    "not blunt, whatever the picture": lambda answer: answer.text.strip() not in BLUNT,
    "red pictures, whatever the answer": lambda answer: answer.colour == "red",
    "none: a fair coin": lambda answer: 0.5,
    "none: one in four": lambda answer: 0.25,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=60, help="of each taste; five times as many at random")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    permutation_test.SHUFFLES = 999  # a run takes more; p is known well enough for a share over many draws
    report: dict[str, Any] = {"circumstances": circumstances(), "shuffles": permutation_test.SHUFFLES, "rows": []}
    answers = answers_of(arguments.toy)
    for count in COUNTS:
        for name, likes in TASTES.items():
            for mistakes in (0.0,) if name.startswith("none") else (0.0, 0.1):
                draws = arguments.draws * (5 if name.startswith("none") else 1)
                report["rows"].append(row(answers, name, likes, count, mistakes, draws))
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def answers_of(folder: Path) -> list[Answer]:
    """The toy's answers, with what it sees of each picture."""
    draw = random.Random(7)
    pictures = [picture(NAMES[n % 2], draw) for n in range(ANSWERS)]
    toy = Toy(folder, pictures)
    chats = [chat_about(data, draw.choice(ASKS_TALK)) for data in pictures]
    names = [chat[0]["content"][0]["sha256"] for chat in chats]
    features = toy.policy.picture_features(names)
    return [
        Answer(
            NAMES[n % 2],
            line["text"],
            RatedReply(line["text"], len(line["token_ids"]), line["finish_reason"] == "stop", 0.0, picture),
        )
        for n, (line, picture) in enumerate(zip(toy.answer(chats, None, 7), features, strict=True))
    ]


def row(
    answers: Sequence[Answer],
    name: str,
    likes: Callable[[Answer], bool | float],
    count: int,
    mistakes: float,
    draws: int,
) -> dict[str, Any]:
    """Shares of draws whose p is at most each bound: with pictures, and by replies alone."""
    p_values: dict[str, list[float]] = {"with pictures": [], "replies alone": []}
    for number in range(draws):
        rng = random.Random(f"{name} {number}")
        rated = [
            replace(answer.reply, reward=1.0 if (rng.random() < likes(answer)) ^ (rng.random() < mistakes) else -1.0)
            for answer in rng.sample(list(answers), count)
        ]
        has_both = len({reply.reward for reply in rated}) > 1
        without_pictures = [replace(reply, picture=None) for reply in rated]
        for kind, replies in (("with pictures", rated), ("replies alone", without_pictures)):
            p_values[kind].append(permutation_test.p_value(replies, seed=number) if has_both else 1.0)
    result = {"taste": name, "ratings": count, "mistakes": mistakes, "draws": draws}
    shares = {
        kind: {str(bound): round(sum(p <= bound for p in values) / draws, 4) for bound in BOUNDS}
        for kind, values in p_values.items()
    }
    print(result, shares, flush=True)
    return result | {"let_through": shares}


if __name__ == "__main__":
    main()
