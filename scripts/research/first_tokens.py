"""How much does another chat template show, and in which tokens? What the bounds of trainer/typical.MISMATCH rest on.

    python -m scripts.research.first_tokens [--replies 140]

Captured replies of the bare small model are scored after the prompt they were given to, and after the same message in
other templates. Excess is −log p less the entropy, nats a token: 0 on average where the policy said it itself. Of the
first so many tokens, in draws of 28 replies, which is a run's. Writes benchmarks/first_tokens.json.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.bench.persona import ROOT, Chat
from scripts.harness.circumstances import circumstances
from scripts.research.poison import TEMPLATES, rendered
from scripts.research.reply_pool import PoolReply, pool
from trainer.formats import weights
from trainer.lessons import reply_checks
from trainer.policy import packing
from trainer.policy.packing import Tokens

TARGET = ROOT / "benchmarks/first_tokens.json"
FIRST = (4, 8, 12, 16, 24, 32, 48, 96)
RUN, DRAWS = 28, 2000
SHARES = (1, 2.5, 50, 97.5, 99)  # percentiles of the draws

Floats = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=140)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    chat = Chat(weights.resolve(None).path, arguments.threads)
    picked = random.Random("first tokens").sample(pool(chat), arguments.replies)
    report: dict[str, Any] = {}
    for name, template in {"its own": None, **TEMPLATES}.items():
        each = excess(chat, picked, template)
        report[name] = [of_first(each, first) for first in FIRST]
        print(name, *report[name], sep="\n  ", flush=True)
    about = {"replies": arguments.replies, "run": RUN, "draws": DRAWS, "percentiles": SHARES}
    TARGET.write_text(json.dumps(circumstances() | about | {"templates": report}, indent=1) + "\n")


def excess(chat: Chat, picked: Sequence[PoolReply], template: str | None) -> list[Floats]:
    """Excess surprise of each reply (T,), after its own prompt or after its message in another template."""
    sequences = []
    for answer in picked:
        prompt = tuple(rendered(chat, template, answer.prompt)) if template else answer.tokens.prompt
        sequences.append(Tokens(prompt, answer.tokens.reply, answer.tokens.temperature))
    each: dict[int, Floats] = {}
    for members in packing.group(sequences, chat.policy.budget):
        scored = chat.policy.log_probs(packing.pack([sequences[i] for i in members]))
        ends = np.cumsum([len(sequences[i].reply) for i in members])[:-1]
        each |= dict(zip(members, np.split(-scored.plain - scored.entropy, ends), strict=True))
    return [each[i] for i in range(len(sequences))]


def of_first(each: Sequence[Floats], first: int) -> dict[str, Any]:
    """Percentiles of the excess of the first tokens together, in draws of a run's replies.

    `told` is the share of draws that a run would not train on, by the bound for so many tokens, where there is one.
    """
    rng = np.random.default_rng(0)
    draws, sizes = [], []
    for _ in range(DRAWS):
        drawn = np.concatenate([each[i][:first] for i in rng.choice(len(each), RUN, replace=False)])
        draws.append(drawn.mean())
        sizes.append(len(drawn))
    row: dict[str, Any] = {"first": first, "excess": [round(float(v), 3) for v in np.percentile(draws, SHARES)]}
    for tokens, bound, spread in reply_checks.MISMATCH:
        if first == (tokens or FIRST[-1]):
            bounds = np.maximum(bound, spread / np.sqrt(sizes))
            row["told"] = round(float((np.array(draws) > bounds).mean()), 4)
    return row


if __name__ == "__main__":
    main()
