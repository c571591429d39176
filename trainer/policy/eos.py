"""Which tokens end a reply: one answer for the built-in server and for the trainer's policies.

What only one of them knew as an end would make replies that the other never gives. Not here: stop strings (reply_text).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REPLY = "What a model said."


def of_replies(configured: int | Sequence[int] | None, tokenizer: Any) -> list[int]:
    """The ids that the model's generation_config names (`configured`), its tokenizer's and its chat template's."""
    ids = [configured] if configured is None or isinstance(configured, int) else configured
    return sorted({i for i in [*ids, tokenizer.eos_token_id, of_turn(tokenizer)] if i is not None})


def of_turn(tokenizer: Any) -> int | None:
    """The token that the template puts after a reply: not every model's turns end with its eos_token."""
    eos: int | None = tokenizer.eos_token_id
    turns: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": REPLY}]
    if needs_parts(tokenizer):
        turns = [in_parts(turn) for turn in turns]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template is a program of the model's; it may raise anything
        return eos
    _, prefix, suffix = text.rpartition(REPLY)
    ids = tokenizer(suffix, add_special_tokens=False)["input_ids"] if prefix else []
    special = set(tokenizer.all_special_ids)
    return next((int(i) for i in ids if i in special), eos)


def needs_parts(tokenizer: Any) -> bool:
    """Tell whether its chat template drops a content that is a text and not a list of parts, as SmolVLM's does."""
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": REPLY}], tokenize=False)
        parts = tokenizer.apply_chat_template([in_parts({"role": "user", "content": REPLY})], tokenize=False)
    except Exception:  # a template is a program of the model's; it may raise anything
        return False
    return REPLY not in text and REPLY in parts


def in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """The same message with its text as a list of one part."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


def until_end(ids: list[int], end: Sequence[int]) -> list[int]:
    """A reply up to its first end token, with it."""
    for n, i in enumerate(ids):
        if i in end:
            return ids[: n + 1]
    return ids
