"""How likely the base model finds replies: mean NLL in nats a token, at temperature 1. A model gone mad is unlikely.

Reads JSON lines from stdin, `{"group": "v1", "prompt_token_ids": […], "token_ids": […]}`; prints one JSON object
{group: nats}. `scripts/demo/__main__.py` uses it; by hand: `python -m scripts.demo.coherence WEIGHTS < replies.jsonl`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from config import presets
from trainer.formats import weights
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    path = weights.resolve(sys.argv[1] if len(sys.argv) > 1 else None).path
    policy = TorchPolicy(path, presets.resolve("balanced", {}), parent=None, threads=threads, seed=0)
    lines = [json.loads(line) for line in sys.stdin]
    replies = [Tokens(tuple(x["prompt_token_ids"]), tuple(x["token_ids"]), 1.0) for x in lines]
    found: dict[str, list[np.ndarray]] = {}
    with policy.wearing(None):
        for members in packing.group(replies, policy.budget):
            packed = packing.pack([replies[i] for i in members])
            scored = np.split(policy.log_probs(packed).plain, np.cumsum(packed.lengths)[:-1])
            for i, logprobs in zip(members, scored, strict=True):
                found.setdefault(lines[i]["group"], []).append(logprobs)
    print(json.dumps({group: float(-np.concatenate(parts).mean()) for group, parts in found.items()}))


if __name__ == "__main__":
    main()
