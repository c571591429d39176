"""How likely the base model finds replies, and how much they depend on what was asked, in nats a token.

A model gone mad is unlikely; one that says the same to everything depends on nothing (trainer.run.topic). Reads JSON
lines from stdin, `{"group": "v1", "prompt_token_ids": […], "token_ids": […]}`. An empty line ends a group, which is
scored at once. Prints one JSON object {group: {"nll": mean, "topic": mean, "topics": [of each reply]}}.
`scripts/demo/__main__.py` uses it; by hand: `python -m scripts.demo.coherence WEIGHTS < replies.jsonl`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from config import presets
from trainer.formats import weights
from trainer.lessons.batch import score
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import topic

ROOT = Path(__file__).resolve().parents[2]


def groups(lines: Iterable[str]) -> Iterator[tuple[str, list[Tokens]]]:
    """Each group as soon as it is there."""
    name, tokens = "", []
    for line in chain(lines, [""]):
        if line.strip():
            record = json.loads(line)
            name = record["group"]
            tokens.append(Tokens(tuple(record["prompt_token_ids"]), tuple(record["token_ids"]), 1.0))
        elif tokens:
            yield name, tokens
            tokens = []


def main() -> None:
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    path = weights.resolve(sys.argv[1] if len(sys.argv) > 1 else None).path
    policy = TorchPolicy(path, presets.resolve("balanced", {}), parent=None, threads=threads, seed=0)
    results = {}
    for group, replies in groups(sys.stdin):
        with policy.wearing(None):
            scored = score(policy, [*replies, *topic.after_other_prompts(replies)])
        own_scores, other_scores = scored[: len(replies)], scored[len(replies) :]
        topics = np.array([(a - b).mean() for a, b in zip(own_scores, other_scores, strict=True)])
        nll = -np.concatenate(own_scores).mean()
        results[group] = {"nll": float(nll), "topic": float(topics.mean()), "topics": topics.round(3).tolist()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
