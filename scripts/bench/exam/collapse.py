"""Does the model collapse? Entropy of its tokens, likeness of its own replies, and drift of its confidence.

The three measures of CLaaS's evaluation, exact where that one takes the top twenty log-probs of a server: entropies are
those of the whole distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from scripts.bench.persona import Chat
from trainer.policy import packing
from trainer.policy.packing import Tokens


@dataclass(frozen=True)
class Collapse:
    entropy: float  # mean of the tokens, nats
    log_prob: float  # mean of the tokens, nats; its difference to the base is the drift
    self_rouge_l: float  # mean F1 over pairs of replies to one question; 1 is the same words


def measure(chat: Chat, replies: Sequence[Sequence[Tokens]]) -> Collapse:
    """Measure what the chat's policy wears now. replies: for each question, several samples."""
    sequences = [Tokens(r.prompt, r.reply, 1.0) for samples in replies for r in samples]
    entropies, log_probs = [], []
    for members in packing.group(sequences, chat.policy.budget):
        scored = chat.policy.log_probs(packing.pack([sequences[i] for i in members]))
        entropies.append(scored.entropy)
        log_probs.append(scored.plain)
    texts = [[chat.template.text(r.reply).split() for r in samples] for samples in replies]
    likeness = [rouge_l(a, b) for samples in texts for a, b in combinations(samples, 2)]
    return Collapse(
        entropy=float(np.concatenate(entropies).mean()),
        log_prob=float(np.concatenate(log_probs).mean()),
        self_rouge_l=float(np.mean(likeness)),
    )


def rouge_l(a: Sequence[str], b: Sequence[str]) -> float:
    """F1 of the longest common subsequence (Lin 2004), in [0, 1]; 0 where one has no word."""
    common = longest_common(a, b)
    return 2 * common / (len(a) + len(b)) if common else 0.0


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        row_above = row
        row = [0]
        for j, word_b in enumerate(b):
            row.append(row_above[j] + 1 if word == word_b else max(row_above[j + 1], row[j]))
    return row[-1]
