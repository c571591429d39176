"""How well the critic of replies tells tastes apart, by how many labels it has; nothing trains.

    python -m scripts.research.critic_states      first, once: some minutes
    python -m scripts.research.critic_auc [--splits 20]

Writes benchmarks/critic.json. For each taste it has the AUC on replies of other conversations, after 30, 100 and more
labels. It has the same with one label in seven wrong, and how often the critic would have been trusted.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.bench.persona import ROOT, Persona, Reply
from scripts.harness.circumstances import circumstances
from scripts.research import critic_states
from trainer.lessons import critic
from trainer.lessons.critic import Labels

COUNTS = (30, 100, 192)
TASTES: dict[str, Callable[[str], bool]] = {
    "short first sentence": lambda text: 0 < len(re.split(r"[.!?\n]", text.strip())[0].split()) <= 12,
    "bullets": lambda text: len(re.findall(r"^\s*[-*•] \S", text, re.M)) >= 2,
    "gives an example": lambda text: bool(re.search(r"\b(for example|for instance|such as|e\.g\.)", text, re.I)),
}
PERSONAS = ("second_person", "short_sentences", "one_paragraph", "concise")


def tastes() -> dict[str, Callable[[dict[str, Any]], float]]:
    rates: dict[str, Callable[[dict[str, Any]], float]] = {}
    for name in PERSONAS:
        persona = Persona(name)
        rates[name] = lambda reply, p=persona: p.rate(reply["prompt"], Reply(reply["text"], ended=reply["ended"]))  # type: ignore[misc]
    for name, likes in TASTES.items():
        rates[name] = lambda reply, likes=likes: 1.0 if likes(reply["text"]) else -1.0  # type: ignore[misc]
    return rates


def measured(labels: Labels, count: int, splits: int, wrong: float) -> dict[str, Any]:
    """Trained on `count` labels, asked about replies of conversations that have none of them."""
    areas, trusted = [], 0
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(labels.sign))
        chosen, test = order[:count], order[count:]
        test = test[~np.isin(labels.group[test], labels.group[chosen])]
        if len(set(labels.sign[test])) < 2 or len(set(labels.sign[chosen])) < 2:
            continue
        signs = np.where(rng.random(count) < wrong, -labels.sign[chosen], labels.sign[chosen])
        training = labels.rows(chosen)._replace(sign=signs)
        areas.append(critic.auc(critic.predict(training, labels.features[test], seed), labels.sign[test]))
        trusted += critic.evaluate(training, seed).trusted
    if not areas:
        return {"splits": 0}
    return {"auc": float(np.mean(areas)), "deviation": float(np.std(areas)), "trusted": trusted / len(areas),
            "splits": len(areas)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    arguments = parser.parse_args()
    mean, last, replies = critic_states.read()
    features = np.concatenate([mean, last], 1)
    length = np.log([1 + reply["tokens"] for reply in replies])
    group = np.array([zlib.crc32(reply["prompt"].encode()) for reply in replies], np.int64)
    random.seed(0)
    table: dict[str, Any] = {}
    for name, rate in tastes().items():
        labels = Labels(
            features, length, np.array([rate(reply) for reply in replies]), group, np.zeros(len(replies), int)
        )
        table[name] = {"liked": float((labels.sign > 0).mean())}
        for wrong in (0.0, 1 / 7):
            for count in COUNTS:
                if count < 0.8 * len(replies):
                    table[name][f"{count}{' noisy' if wrong else ''}"] = measured(
                        labels, count, arguments.splits, wrong
                    )
        print(name, json.dumps(table[name]), flush=True)
    about = {**circumstances(), "replies": len(replies), "tastes": table}
    (ROOT / "benchmarks/critic.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
