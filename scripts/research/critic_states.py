"""Replies of the bare small model with the critic's features, made once, chunk by chunk, and kept in the cache.

    python -m scripts.research.critic_states [--replies 240]

Owns the collection; it goes on where it was stopped. Not here: the critic's figures (critic_auc).
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np

from scripts.bench import persona
from scripts.bench.persona import Chat
from scripts.research.reply_pool import CACHE
from trainer.formats import weights
from trainer.policy import packing
from trainer.policy.packing import States, Tokens

CHUNK, TOKENS = 24, 64
FOLDER = CACHE / "critic"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=240)
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = random.Random(5).sample(persona.prompts()["rate"], 120)
    chat: Chat | None = None
    for chunk in range(arguments.replies // CHUNK):
        path = FOLDER / f"{chunk:03d}.npz"
        if path.exists():
            continue
        chat = chat or Chat(weights.resolve(None).path, threads=1)
        now = [texts[(chunk * CHUNK + i) % len(texts)] for i in range(CHUNK)]
        _write(path, chat, now, seed=9000 + chunk)
        print(f"{(chunk + 1) * CHUNK} replies", flush=True)


def _write(path: Path, chat: Chat, texts: list[str], seed: int) -> None:
    prompts = [chat.template.prompt([{"role": "user", "content": text}]) for text in texts]
    out = chat.policy.generate(prompts, max_tokens=TOKENS, temperature=0.8, seed=seed)
    reply_states = states(chat, prompts, out)
    mean, last = [rows[1:].mean(0) for rows in reply_states], [rows[-1] for rows in reply_states]
    answers = [
        {
            "prompt": text,
            "text": chat.template.text(reply),
            "ended": reply[-1] == chat.template.end,
            "tokens": len(reply),
        }
        for text, reply in zip(texts, out, strict=True)
    ]
    with path.with_suffix(".tmp").open("wb") as file:
        np.savez(file, mean=np.stack(mean), last=np.stack(last), said=np.array(json.dumps(answers)))
    path.with_suffix(".tmp").rename(path)


def states(chat: Chat, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[States]:
    """(T + 1, H) of each reply: before each of its tokens, and after the last."""
    # One token more, whichever: what is before it is what comes after the reply.
    sequences = [Tokens(tuple(p), (*r, r[-1]), 0.8) for p, r in zip(prompts, replies, strict=True)]
    rows: list[Any] = [None] * len(sequences)
    for members in packing.group(sequences, chat.policy.budget):
        packed = packing.pack([sequences[i] for i in members])
        parts = np.split(chat.policy.states(packed), np.cumsum(packed.lengths)[:-1])
        for i, part in zip(members, parts, strict=True):
            rows[i] = part.copy()
    return rows


def read() -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Mean and last states (R, H), and what was said."""
    parts = [np.load(path) for path in sorted(FOLDER.glob("*.npz"))]
    replies = [reply for part in parts for reply in json.loads(str(part["said"]))]
    return np.concatenate([p["mean"] for p in parts]), np.concatenate([p["last"] for p in parts]), replies


if __name__ == "__main__":
    main()
