"""The file of `train.reward` in this benchmark: reasoning-gym's own score of an answer, and a text on what was wrong.

A copy of it has the values of `SETTINGS` written in: the task, its seed, and the arm. It runs in rlproxy's child
process, which finds reasoning-gym in the environment of the harnesses. Not here: who asks (__main__).
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

SETTINGS: dict[str, Any] = {"task": "knights_knaves", "seed": 0, "count": 64, "arm": "both", "path": ""}


def entries() -> tuple[Any, dict[str, Any]]:
    """The dataset, and its entries by question."""
    if SETTINGS["path"]:
        sys.path.append(SETTINGS["path"])
    reasoning_gym = importlib.import_module("reasoning_gym")

    dataset = reasoning_gym.create_dataset(SETTINGS["task"], size=SETTINGS["count"], seed=SETTINGS["seed"])
    return dataset, {entry["question"]: entry for entry in dataset}


def score(dataset: Any, entry: Any, text: str) -> float:
    """From 0 to 1, of the last line that says something: small models begin with words of their own."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return max((float(dataset.score_answer(answer, entry)) for answer in (text.strip(), *lines[-1:])), default=0.0)


_LOADED: list[Any] = []


def reward(episode: dict[str, Any]) -> dict[str, Any] | None:
    if not _LOADED:
        _LOADED.extend(entries())
    dataset, by_question = _LOADED
    turn = episode["turns"][-1]
    entry = by_question.get(turn["messages"][-1]["content"])
    if entry is None:
        return None
    value = 2 * score(dataset, entry, turn["text"]) - 1
    if SETTINGS["arm"] == "shuffled":
        value = random.choice((-1.0, 1.0))  # a control
    has_comment = value < 1 and SETTINGS["arm"] in ("text", "both")
    comment = f"The right answer is: {entry['answer']}. Answer with that alone, in that form." if has_comment else ""
    return {"reward": min(value, -0.01) if has_comment else value, "comment": comment}
