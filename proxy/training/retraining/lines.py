"""Answers of another model as lines of a run folder: what was said, without what only that model can know.

Token ids are of another vocabulary, and log-probs of another policy. So neither is passed on: the trainer renders the
messages by the new base's own template and tokenises the words of the answer. Not here: the rest of a line
(run_folder).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.conversation.conversations import as_chat
from store.records import BASE, Completion

OF_THE_SERVER: Final = (  # members of a line that its own server has told
    "prompt_token_ids", "token_ids", "logprobs", "unconstrained_logprobs", "pieces", "logprobs_of", "reply_tokens",
    "prompt_tokens",
)  # fmt: skip


def as_foreign(line: Mapping[str, Any], completion: Completion) -> dict[str, Any]:
    """The line of an answer that the model which trains has not given."""
    message = None if completion.end is None or completion.end.reply is None else as_chat(completion.end.reply)
    calls = message if message is not None and message.get("tool_calls") else None
    return {**line, **dict.fromkeys(OF_THE_SERVER), "version": BASE, "exact": False, "reply": calls}
