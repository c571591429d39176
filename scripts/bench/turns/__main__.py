"""Does a rating of a conversation's last answer teach the turn before?

    python -m scripts.bench.turns --judged first --taught both     # the taste is about the first answer
    python -m scripts.bench.turns --judged last --taught both      # it is about the last one, as most are

A talk has two turns, and one rating. `last` teaches the rated answer alone, as rlproxy does; `both` teaches the answer
before it with the same rating, too. After each run the taste judges both turns of talks about held-out questions.
Writes benchmarks/turns/TASTE-JUDGED-TAUGHT-seedN.json after every run.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any, Final

from scripts.bench.persona import ROOT, Chat, Persona, prompts
from scripts.bench.turns import talks
from scripts.bench.version_line import VersionLine
from scripts.harness.circumstances import circumstances
from trainer.formats import weights

TURNS: Final = {"first": 0, "last": 1}
TAUGHT: Final = {"last": (1,), "both": (0, 1)}
HELD_SHARE: Final = 1 / 8  # of a round's talks, kept back for the gate
EXAM_SEED: Final = 1000
QUOTED: Final = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persona", default="one_paragraph")
    parser.add_argument("--judged", choices=TURNS, default="first")
    parser.add_argument("--taught", choices=TAUGHT, default="last")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ratings", type=int, default=32, help="a round")
    parser.add_argument("--eval", type=int, default=40, help="held-out questions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", help="a folder or a hub id instead of the small model")
    arguments = parser.parse_args()
    name = f"{arguments.persona}-{arguments.judged}-{arguments.taught}-seed{arguments.seed}.json"
    target = ROOT / "benchmarks/turns" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {**circumstances(), "arguments": vars(arguments), "rounds": []}
    chat = Chat(weights.resolve(arguments.weights).path, arguments.threads)
    bench = Bench(chat, arguments)
    record["base"] = bench.examine(None)
    print(f"base: {_shares(record['base'])}", flush=True)
    for index in range(arguments.rounds):
        record["rounds"].append(bench.round(index))
        target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        entry = record["rounds"][-1]
        run = entry["run"]
        print(
            f"{index + 1}: {entry['good']} good, {run['status']}, {run['choices'].get('pushed')}: "
            f"{_shares(entry['liked'])} ({run['reason']})",
            flush=True,
        )


class Bench:
    def __init__(self, chat: Chat, arguments: argparse.Namespace) -> None:
        self._chat = chat
        self._arguments = arguments
        self._taste = Persona(arguments.persona)
        texts = prompts()
        self._held_out = texts["held-out"][: arguments.eval]
        self._questions = random.Random(arguments.seed).sample(texts["rate"], len(texts["rate"]))
        self._versions = VersionLine(
            chat.weights, "balanced", {}, seed=arguments.seed, threads=arguments.threads
        )  # fmt: skip

    def round(self, index: int) -> dict[str, Any]:
        start, count = time.monotonic(), self._arguments.ratings
        questions = [self._questions[i % len(self._questions)] for i in range(index * count, (index + 1) * count)]
        adapter, seed = self._versions.adapter, self._arguments.seed * 1000 + 2 * index
        conversations = talks.hold(self._chat, questions, adapter, seed)
        ratings = [talks.likes(self._taste, talk, TURNS[self._arguments.judged]) for talk in conversations]
        run = self._versions.learn(
            talks.lines(
                self._chat, conversations, ratings, adapter, version=self._versions.version, seed=seed,
                taught=TAUGHT[self._arguments.taught], held_back=round(count * HELD_SHARE),
            )
        )  # fmt: skip
        return {
            "good": sum(rating > 0 for rating in ratings),
            "version": self._versions.version,
            "run": run,
            "liked": self.examine(self._versions.adapter),
            "seconds": time.monotonic() - start,
        }

    def examine(self, adapter: Path | None) -> dict[str, Any]:
        """Share of held-out talks whose first, and whose last, answer the taste likes."""
        conversations = talks.hold(self._chat, self._held_out, adapter, EXAM_SEED)
        shares = {
            name: sum(talks.likes(self._taste, talk, turn) > 0 for talk in conversations) / len(conversations)
            for name, turn in TURNS.items()
        }
        return shares | {"quoted": [[str(turn.reply) for turn in talk] for talk in conversations[:QUOTED]]}


def _shares(liked: dict[str, Any]) -> str:
    return ", ".join(f"{name} {liked[name]:.2f}" for name in TURNS)


if __name__ == "__main__":
    main()
