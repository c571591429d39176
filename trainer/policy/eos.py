"""Which tokens end a reply: one answer for the built-in server and for the trainer's policies.

What only one of them knew as an end would make replies that the other never gives. Not here: stop strings (reply_text).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLY = "What a model said."


def of_replies(configured: int | Sequence[int] | None, tokenizer: Any) -> list[int]:
    """The ids that the model's generation_config names (`configured`), its tokenizer's and its chat template's."""
    ids = [configured] if configured is None or isinstance(configured, int) else configured
    return sorted({i for i in [*ids, tokenizer.eos_token_id, of_turn(tokenizer)] if i is not None})


def of_turn(tokenizer: Any) -> int | None:
    """The token that the template puts after a reply: not every model's turns end with its eos_token."""
    eos: int | None = tokenizer.eos_token_id
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": REPLY}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template is a program of the model's; it may raise anything
        return eos
    _, prefix, suffix = text.rpartition(REPLY)
    ids = tokenizer(suffix, add_special_tokens=False)["input_ids"] if prefix else []
    special = set(tokenizer.all_special_ids)
    return next((int(i) for i in ids if i in special), eos)
