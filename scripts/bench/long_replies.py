"""Measure the CPU that capture takes for a token of a streamed reply, by the length of the reply.

    python -m scripts.bench.long_replies [--tree FOLDER] [--json FILE]

The dialect's own fold makes a reply of chunks as vLLM sends them: a token each, with token ids and log-probs and
without. It does the same with the arguments of a tool call of that length. The figure is microseconds of CPU a chunk,
the lowest of five. `--tree` measures another checkout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (1_000, 4_000, 16_000, 32_000)
PLAIN: dict[str, Any] = {"index": 0, "delta": {"content": " word"}, "finish_reason": None}
EXACT = {**PLAIN, "token_ids": [5], "logprobs": {"content": [{"token": " word", "logprob": -0.5}]}}
CALL = {"index": 0, "function": {"arguments": " word"}}
CALLING: dict[str, Any] = {"index": 0, "delta": {"tool_calls": [CALL]}, "finish_reason": None}


def cost_us(dialect: Any, choice: dict[str, Any], length: int) -> float:
    lowest = float("inf")
    for _ in range(5):
        chunks = [json.loads(json.dumps({"id": "x", "choices": [choice]})) for _ in range(length)]
        fold = dialect.fold()
        begin = time.thread_time()
        for chunk in chunks:
            fold.add(chunk)
        (reply,) = fold.replies()
        lowest = min(lowest, time.thread_time() - begin)
        said = reply.text or reply.message["tool_calls"][0]["function"]["arguments"]
        assert len(said) == length * len(" word")
    return lowest / length * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    sys.path[:0] = [str(asked.tree), str(ROOT)]
    from proxy.dialects import CHAT
    from scripts.harness.circumstances import circumstances

    found: dict[str, Any] = {
        **circumstances(),
        "tree": str(asked.tree) if asked.tree != ROOT else None,
        "us_a_chunk": {},
    }
    for name, choice in (("plain", PLAIN), ("with ids and log-probs", EXACT), ("a tool call", CALLING)):
        found["us_a_chunk"][name] = {length: round(cost_us(CHAT, choice, length), 2) for length in LENGTHS}
        print(name, found["us_a_chunk"][name], flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
