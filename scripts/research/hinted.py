"""How far would a comment itself go? The base with a persona's comment in its context, measured as bench/learn does.

    python -m scripts.research.hinted --personas bullets,asks_back,lowercase,no_apology [--weights FOLDER]

That is a run's teacher, and what a lesson does to the next answer. Its liked share is what comments alone can teach.
The base NLL of its replies, once the comment is not there any more, is what a taste costs by being another style. No
learner of that taste can be expected near 0. Writes benchmarks/hinted.json, a persona as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from scripts.bench.persona import BATCH, MAX_TOKENS, ROOT, TEMPERATURE, Chat, Persona, Reply, prompts
from scripts.harness.circumstances import circumstances
from trainer.formats import weights
from trainer.lessons import teacher
from trainer.policy.packing import Tokens

TARGET = ROOT / "benchmarks/hinted.json"
DISLIKED = Reply("I'm sorry, but I cannot help with that.", ended=True)  # by every persona that comments
SEED = 1000  # bench/learn's, for its held-out prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--personas", default="bullets,asks_back,lowercase,no_apology")
    parser.add_argument("--eval", type=int, default=80, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", help="another model than the small one")
    arguments = parser.parse_args()
    path = weights.resolve(arguments.weights).path
    chat = Chat(path, arguments.threads)
    for name in arguments.personas.split(","):
        persona = Persona(name)
        held_out = prompts()[f"held-out {persona.prompts}".strip()][: arguments.eval]
        figures = circumstances() | {"prompts": len(held_out), **measured(chat, persona, held_out)}
        everything = json.loads(TARGET.read_bytes()) if TARGET.exists() else {}
        everything[f"{persona.name}, {path.name}" if arguments.weights else persona.name] = figures
        TARGET.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
        print(persona.name, {k: v for k, v in figures.items() if k in ("bare", "hinted")}, flush=True)


def measured(chat: Chat, persona: Persona, texts: list[str]) -> dict[str, Any]:
    comment = persona.comment(texts[0], DISLIKED)
    assert comment, f"{persona.name} has nothing to say about {DISLIKED!r}"
    conversations = [[{"role": "user", "content": text}] for text in texts]
    bare = [chat.template.prompt(messages) for messages in conversations]
    hinted = [chat.template.prompt(teacher.hint(messages, comment)) for messages in conversations]
    return {
        "comment": comment,
        "bare": of_replies(chat, persona, texts, bare, bare),
        "hinted": of_replies(chat, persona, texts, hinted, bare),
    }


def of_replies(
    chat: Chat, persona: Persona, texts: list[str], prompts: list[tuple[int, ...]], bare: list[tuple[int, ...]]
) -> dict[str, float]:
    """Liked share and length of the base's replies to `prompts`; their NLL a token under the base after `bare`."""
    sampled: list[list[int]] = []
    for first in range(0, len(prompts), BATCH):
        part = prompts[first : first + BATCH]
        sampled += chat.policy.generate(part, max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=SEED + first)
    replies = [Tokens(prompt, tuple(reply)) for prompt, reply in zip(bare, sampled, strict=True)]
    nll = [-row for row in chat.score_now(replies)]
    liked = [persona.rate(text, chat.said(reply)) > 0 for text, reply in zip(texts, replies, strict=True)]
    return {
        "liked": float(np.mean(liked)),
        "base_nll": float(np.concatenate(nll).mean()),
        "base_nll_of_first_tokens": float(np.mean([row[0] for row in nll])),
        "tokens": float(np.mean([len(row) for row in nll])),
    }


if __name__ == "__main__":
    main()
