"""A version's liked shares: one reply to each held-out prompt, and all tastes rate the same replies.

Owns the held-out prompts and their seeds. A prompt has a seed of its own, so versions are compared on the same draws.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from scripts.bench.persona import BATCH, MAX_TOKENS, TEMPERATURE, Chat, Persona, Reply, prompts
from trainer.policy.packing import Tokens

ABILITY: Final = "sums"  # the taste that is asked as well where nobody teaches it
FIRST_SEED: Final = 1000
QUOTED: Final = 4  # replies of each part of the prompts


class Examiner:
    def __init__(self, chat: Chat, tastes: Sequence[Persona], count: int) -> None:
        """count: of held-out prompts, of each part of prompts.txt that a taste asks from."""
        self._chat = chat
        self._tastes = {taste.name: taste for taste in (*tastes, Persona(ABILITY))}
        texts = prompts()
        self._prompts = {part: texts[f"held-out {part}".strip()][:count] for part in self._parts()}

    def _parts(self) -> list[str]:
        return sorted({taste.prompts for taste in self._tastes.values()})

    def examine(self, adapter: Path | None) -> dict[str, Any]:
        start = time.monotonic()
        replies = {part: self._replies(texts, adapter) for part, texts in self._prompts.items()}
        return {
            "liked": {name: self._share(taste, replies[taste.prompts]) for name, taste in self._tastes.items()},
            "words": {part: float(np.mean([len(reply.split()) for reply in replies[part]])) for part in replies},
            "ended": {part: float(np.mean([reply.ended for reply in replies[part]])) for part in replies},
            "replies": {part: replies[part][:QUOTED] for part in replies},
            "seconds": time.monotonic() - start,
        }

    def _share(self, taste: Persona, replies: Sequence[Reply]) -> float:
        pairs = list(zip(self._prompts[taste.prompts], replies, strict=True))
        return sum(taste.rate(prompt, reply) > 0 for prompt, reply in pairs) / len(pairs)

    def _replies(self, texts: Sequence[str], adapter: Path | None) -> list[Reply]:
        chat, replies = self._chat, []
        with chat.policy.wearing(adapter):
            for first in range(0, len(texts), BATCH):
                batch = [chat.template.prompt([{"role": "user", "content": t}]) for t in texts[first : first + BATCH]]
                seeds = [FIRST_SEED + first + i for i in range(len(batch))]
                sampled = chat.policy.generate(batch, max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seeds)
                replies += [chat.said(Tokens(p, tuple(ids))) for p, ids in zip(batch, sampled, strict=True)]
        return replies
