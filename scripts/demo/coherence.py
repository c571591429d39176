"""How likely the base model finds replies, and how much they depend on what was asked, in nats a token.

A model gone mad is unlikely; one that says the same to everything depends on nothing (trainer.run.topic). Reads JSON
lines from stdin, `{"group": "v1", "prompt_token_ids": […], "token_ids": […]}`; prints one JSON object
{group: {"nll": mean, "topic": mean, "topics": [of each reply]}}.
`scripts/demo/__main__.py` uses it; by hand: `python -m scripts.demo.coherence WEIGHTS < replies.jsonl`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from config import presets
from trainer.formats import weights
from trainer.lessons.batch import score
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import topic

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    path = weights.resolve(sys.argv[1] if len(sys.argv) > 1 else None).path
    policy = TorchPolicy(path, presets.resolve("balanced", {}), parent=None, threads=threads, seed=0)
    lines = [json.loads(line) for line in sys.stdin]
    replies = [Tokens(tuple(x["prompt_token_ids"]), tuple(x["token_ids"]), 1.0) for x in lines]
    groups: dict[str, list[Tokens]] = {}
    for line, reply in zip(lines, replies, strict=True):
        groups.setdefault(line["group"], []).append(reply)
    found = {}
    for group, said in groups.items():
        with policy.wearing(None):
            nll = -np.concatenate(score(policy, said)).mean()
        (topics,) = topic.measure(policy, said)
        found[group] = {"nll": float(nll), "topic": float(topics.mean()), "topics": topics.round(3).tolist()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
