"""Replies of the bare small model to the prompts of the learning benchmarks, made once and kept in the cache.

Owns the pool: exact ids and log-probs at the serving temperature, as a server would have captured them. A reply cut at
fewer tokens is what a smaller `max_tokens` would have given. Not here: who rates them.

    python -m scripts.research.reply_pool
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.persona import MAX_TOKENS, TEMPERATURE, Chat, Reply, prompts
from trainer.formats import weights
from trainer.policy.packing import Tokens

CACHE = Path("~/.cache/rlproxy/bench").expanduser()
SEEDS = (1, 2)  # replies to each prompt
OF_OTHERS = 40  # prompts of a model other than the small one, which takes longer


@dataclass(frozen=True, slots=True)
class PoolReply:
    """One captured completion."""

    prompt: str
    tokens: Tokens
    logprobs: list[float]  # (T,) at the serving temperature
    reply: Reply

    def cut(self, most: int, chat: Chat) -> PoolReply:
        """Cut the reply as a smaller max_tokens would have."""
        if len(self.tokens.reply) <= most:
            return self
        tokens = Tokens(self.tokens.prompt, self.tokens.reply[:most], self.tokens.temperature)
        return PoolReply(self.prompt, tokens, self.logprobs[:most], chat.said(tokens))


def capture(chat: Chat, texts: Sequence[str], replies: Sequence[Tokens]) -> list[PoolReply]:
    """Replies of what the policy wears now, with their log-probs."""
    scored = chat.score_now(list(replies))
    return [
        PoolReply(text, reply, row.tolist(), chat.said(reply))
        for text, reply, row in zip(texts, replies, scored, strict=True)
    ]


def pool(chat: Chat) -> list[PoolReply]:
    """Two replies to each of the 120 prompts, or fewer prompts of a larger model; some minutes the first time."""
    is_small = chat.weights == weights.resolve(None).path
    path = CACHE / (f"pool-{MAX_TOKENS}.json" if is_small else f"pool-{chat.weights.name}-{MAX_TOKENS}.json")
    if not path.exists():
        half = None if is_small else OF_OTHERS
        texts = prompts()["rate"][:half] * len(SEEDS)
        half = len(texts) // len(SEEDS)
        replies = [
            reply for n, seed in enumerate(SEEDS) for reply in chat.ask_now(texts[n * half :][:half], seed * 777)
        ]
        lines = [
            {"prompt": s.prompt, "ids": s.tokens.prompt, "reply": s.tokens.reply, "logprobs": s.logprobs}
            for s in capture(chat, texts, replies)
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(lines))
    return [_read(chat, line) for line in json.loads(path.read_bytes())]


def _read(chat: Chat, line: dict[str, Any]) -> PoolReply:
    tokens = Tokens(tuple(line["ids"]), tuple(line["reply"]), TEMPERATURE)
    return PoolReply(line["prompt"], tokens, line["logprobs"], chat.said(tokens))


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    answers = pool(Chat(weights.resolve(None).path, threads=1))
    ended = np.mean([answer.reply.ended for answer in answers])
    print(f"{len(answers)} replies in {CACHE}, {ended:.2f} of them end by themselves within {MAX_TOKENS} tokens")
