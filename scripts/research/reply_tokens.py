"""How likely each token of one reply was, for a picture in docs/explain/how-it-learns.md: benchmarks/reply_tokens.json.

Owns the choice: the first reply of the pool that the persona `concise` dislikes. Drawing it is plot_learning's.

    python -m scripts.research.reply_tokens
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from scripts.bench.persona import Chat
from scripts.harness.circumstances import now
from scripts.research.reply_pool import pool
from trainer.formats import weights

TARGET = Path(__file__).resolve().parents[2] / "benchmarks" / "reply_tokens.json"


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = weights.resolve(None).path
    chat = Chat(folder, threads=1)
    answer = next(candidate for candidate in pool(chat) if not candidate.reply.ended)
    (row,) = chat.score_now([answer.tokens])  # at the serving temperature, as the trainer sees them
    record = {
        "date": now(),
        "model": folder.name,
        "prompt": answer.prompt,
        "tokens": [
            {"text": chat.template.text([token]), "p": round(math.exp(value), 4)}
            for token, value in zip(answer.tokens.reply, row, strict=True)
        ],
    }
    TARGET.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {TARGET.name}")


if __name__ == "__main__":
    main()
