"""Which tokens did a run on pairs move? Both answers of some pairs, token by token, before and after.

    python -m scripts.research.pair_tokens RUN_FOLDER ADAPTER

RUN_FOLDER is one whose run trained the version in ADAPTER from the base (scripts.bench.learn leaves them in the folder
that it names at its end). Writes benchmarks/pair_tokens.json: the pairs whose answers share the longest beginning.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.persona import ROOT, Chat
from scripts.harness.circumstances import circumstances
from trainer.formats import weights
from trainer.policy.packing import Tokens

PAIR_COUNT = 4
LONGEST = 24  # tokens of an answer that a table has room for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("adapter", type=Path)
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in (arguments.folder / "samples.jsonl").read_text().splitlines()]
    chosen = sorted(pairs(lines), key=lambda pair: -shared(*pair))[:PAIR_COUNT]
    chat = Chat(weights.resolve(None).path, threads=1)
    replies = [_tokens(line) for pair in chosen for line in pair]
    old_scores, new_scores = chat.score(replies, None, 1.0), chat.score(replies, arguments.adapter, 1.0)
    answers = [
        {"question": line["messages"][-1]["content"], "reward": line["reward"], "tokens": _table(chat, reply, *scores)}
        for line, reply, *scores in zip(
            [line for pair in chosen for line in pair], replies, old_scores, new_scores, strict=True
        )
    ]
    target = ROOT / "benchmarks/pair_tokens.json"
    target.write_text(json.dumps({**circumstances(), "answers": answers}, indent=1, ensure_ascii=False))
    for answer in answers:
        text = " ".join(f"{t['text']!r} {t['before']:.2f}→{t['after']:.2f}" for t in answer["tokens"])
        print(f"{answer['reward']:+.0f} {answer['question']}  {text}")


def pairs(lines: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The liked and the disliked answer to each prompt that has both, short ones only."""
    of: dict[tuple[int, ...], dict[bool, dict[str, Any]]] = {}
    for line in lines:
        if line["split"] == "train" and line["reward"] and len(line["token_ids"]) <= LONGEST:
            of.setdefault(tuple(line["prompt_token_ids"]), {})[line["reward"] > 0] = line
    return [(by_sign[True], by_sign[False]) for by_sign in of.values() if len(by_sign) == 2]


def shared(better: dict[str, Any], worse: dict[str, Any]) -> int:
    """Tokens that both begin with."""
    same = [a == b for a, b in zip(better["token_ids"], worse["token_ids"], strict=False)]
    return same.index(False) if False in same else len(same)


def _tokens(line: dict[str, Any]) -> Tokens:
    return Tokens(tuple(line["prompt_token_ids"]), tuple(line["token_ids"]))


def _table(chat: Chat, reply: Tokens, old: np.ndarray, new: np.ndarray) -> list[dict[str, Any]]:
    texts = [chat.policy.tokenizer.decode([id]) for id in reply.reply]
    chances = zip(texts, np.exp(old), np.exp(new), strict=True)
    return [{"text": text, "before": round(float(b), 4), "after": round(float(a), 4)} for text, b, a in chances]


if __name__ == "__main__":
    main()
