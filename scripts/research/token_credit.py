"""How much of a taste the direction explains by which tokens are credited; nothing trains.

    python -m scripts.research.token_credit [--replies 96]

Writes benchmarks/token_credit.json. For each persona and each range of replies it has two figures. One is the share of
ratings that the direction explains at the ends of replies of other conversations. The other is how often shuffled
ratings are explained as well. A run takes "critic". Before, it took "mean difference": mean last state of liked minus
disliked replies.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np

from scripts.bench.persona import ROOT, Chat, Persona, Reply, prompts
from scripts.harness.circumstances import circumstances
from scripts.research.critic_states import states
from trainer.formats import weights
from trainer.lessons import credit_assignment, critic
from trainer.lessons.critic import Labels
from trainer.mis_po import Floats
from trainer.policy.packing import States

PERSONAS = ("second_person", "short_sentences", "one_paragraph", "concise")
TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=96)
    count = parser.parse_args().replies
    chat = Chat(weights.resolve(None).path, threads=1)
    texts = random.Random(3).sample(prompts()["rate"], count)
    tokens = [chat.template.prompt([{"role": "user", "content": text}]) for text in texts]
    replies = [
        reply
        for start in range(0, count, 32)
        for reply in chat.policy.generate(
            tokens[start : start + 32], max_tokens=TOKENS, temperature=0.8, seed=50 + start
        )
    ]
    read = states(chat, tokens, replies)
    answers = [Reply(chat.template.text(r), ended=r[-1] == chat.template.end) for r in replies]
    tastes: dict[str, Any] = {}
    for name in PERSONAS:
        persona = Persona(name)
        y = np.array([persona.rate(text, reply) for text, reply in zip(texts, answers, strict=True)])
        for first, last, past in ((0, 32, 0), (32, 64, 0), (32, 64, 32), (64, 96, 0), (64, 96, 64), (0, 96, 0)):
            row = measured(read, y, range(first, min(last, count)), range(first - past, first))
            tastes.setdefault(name, []).append(row)
            print(name, row, flush=True)
    report = circumstances() | {"model": "SmolLM2-135M-Instruct", "replies": count, "tokens": TOKENS, "tastes": tastes}
    (ROOT / "benchmarks/token_credit.json").write_text(json.dumps(report, indent=1) + "\n")


def measured(read: list[States], y: Floats, now: range, past: range) -> dict[str, Any]:
    of = _labels(read, y, now)
    past_labels = _labels(read, y, past) if past else None
    credit = credit_assignment.credit([read[i] for i in now], y[now.start : now.stop].tolist(), of, 1, past_labels)
    return {
        "replies": len(now), "liked": int((of.sign > 0).sum()), "earlier": len(past),
        "critic": round(credit.explained, 3), "by_chance": credit.by_chance,
        "mean difference": round(_mean_difference([read[i] for i in now], of), 3),
    }  # fmt: skip


def _labels(read: list[States], y: Floats, indices: range) -> Labels:
    return critic.label_replies([read[i] for i in indices], y[indices.start : indices.stop].tolist(), indices)


def _mean_difference(read: list[States], of: Labels) -> float:
    """The same measure for the direction that runs took until 25 November 2026."""
    y, fold = of.sign, critic.assign_folds(of.group, 1)
    tokens = np.concatenate(read).astype(np.float64)
    ends = (np.stack([rows[-1] for rows in read]) - tokens.mean(0)) / (tokens.std(0) + 1e-6)
    value = np.zeros(len(y))
    for part in np.unique(fold):
        liked, disliked = ((fold != part) & (y == sign) for sign in (1, -1))
        if liked.any() and disliked.any():
            value[fold == part] = ends[fold == part] @ (ends[liked].mean(0) - ends[disliked].mean(0))
    weight = np.where(y > 0, 0.5 / max((y > 0).sum(), 1), 0.5 / max((y < 0).sum(), 1))
    spread = float((weight * value**2).sum())
    slope = float((weight * y * value).sum()) / spread if spread else 0.0
    return max(0.0, 1.0 - float((weight * (y - np.clip(slope * value, -1, 1)) ** 2).sum())) if slope > 0 else 0.0


if __name__ == "__main__":
    main()
