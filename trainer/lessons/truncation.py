"""A conversation without its oldest turns, for samples longer than the trainer takes.

Owns where a conversation may be cut. System and developer messages stay, wherever they are; so do the last user message
and the last step before the reply. A tool's results go with the call that asked for them. Whole user turns go first,
oldest first; then, in an agent's long last turn, its oldest steps. Not here: what fits (samples).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Chat = list[Mapping[str, Any]]

PINNED = {"system", "developer"}
RESULTS = {"tool", "function"}


def cut(messages: Sequence[Mapping[str, Any]], fits: Callable[[Chat], bool]) -> Chat | None:
    """The most of it that fits, at least one turn less than all; None where not even its last turn does."""
    shorter = shorter_chats(messages)
    index = bisect_left(shorter, True, key=fits)  # fewer messages are never longer
    return shorter[index] if index < len(shorter) else None


def shorter_chats(messages: Sequence[Mapping[str, Any]]) -> list[Chat]:
    """Every way to leave out the oldest, the least first."""
    steps = _steps(messages)
    last_question = max((n for n, step in enumerate(steps) if _role(messages[step[0]]) == "user"), default=None)
    cuts = []
    for first in range(1, len(steps)):  # the first step that stays
        if last_question is None or (first <= last_question and _role(messages[steps[first][0]]) == "user"):
            dropped = steps[:first]
        elif first > last_question + 1:
            dropped = steps[:last_question] + steps[last_question + 1 : first]
        else:
            continue  # templates want a user message first
        dropped_indices = {i for step in dropped for i in step}
        cuts.append([message for i, message in enumerate(messages) if i not in dropped_indices])
    return cuts


def _steps(messages: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Which messages only go together, by their places: each alone, but for a call and its results."""
    steps: list[list[int]] = []
    for i, message in enumerate(messages):
        if _role(message) in PINNED:
            continue
        if _role(message) in RESULTS and steps:
            steps[-1].append(i)
        else:
            steps.append([i])
    return steps


def _role(message: Mapping[str, Any]) -> Any:
    return message.get("role")
