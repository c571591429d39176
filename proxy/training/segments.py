"""The segments of an episode: chains of turns, each of which goes on from the whole of the one before.

An agent that sends its history again makes one segment. A compaction, a branch or a subagent begins another. By token
ids where they were captured, else by messages. Not here: how segments share tokens in training (trainer.policy.tree).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store.records import Completion


def segments(turns: Sequence[Completion]) -> list[int]:
    """The segment of each turn, numbered from 0 in the order in which they begin."""
    ends: list[Sequence[Any]] = []  # what the newest turn of each segment said in all
    numbers = []
    for turn in turns:
        prompt, whole = _prompt_and_whole(turn)
        best = -1
        for index, end in enumerate(ends):
            longer = best < 0 or len(end) > len(ends[best])
            if longer and len(end) <= len(prompt) and type(end) is type(prompt) and end == prompt[: len(end)]:
                best = index
        if best < 0:
            best = len(ends)
            ends.append(whole)
        ends[best] = whole
        numbers.append(best)
    return numbers


def _prompt_and_whole(turn: Completion) -> tuple[Sequence[Any], Sequence[Any]]:
    """A turn's prompt, and that with its reply: a list of ids or, where those are not known, of messages."""
    end = turn.end
    if end is not None and end.prompt_token_ids and end.token_ids is not None:
        prompt = list(end.prompt_token_ids)
        return prompt, [*prompt, *end.token_ids]
    messages = turn.new.prompt
    reply = (end.reply,) if end is not None and end.reply is not None else ()
    return messages, (*messages, *reply)
