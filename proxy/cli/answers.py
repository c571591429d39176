"""`rlproxy answers`: the newest answers, with what was said of each.

Owns one line for each answer, for people. Not here: the panel that rates them (watch).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from proxy.cli.tables import console
from proxy.conversation.first_words import first_words
from proxy.core.version_names import label

STYLES: Final = {"good": "green", "bad": "red"}


def print_answers(answers: Iterable[dict[str, Any]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for column in ("when", "rated", "version", "answer", "id"):
        grid.add_column(column, no_wrap=column != "answer", style="dim" if column == "id" else "")
    now = time.time()
    for answer in answers:
        rated = rated_as(answer)
        grid.add_row(
            ago(now - answer["created_at"]), Text(rated or "–", style=STYLES.get(rated, "")),
            "–" if answer["version"] is None else label(answer["version"]), text_of(answer), answer["id"],
        )  # fmt: skip
    console().print(grid)


def rated_as(answer: dict[str, Any], rater: str | None = None) -> str:
    """The newest rating in a word, of this rater where one is named; empty where there is none."""
    ratings = [rating for rating in answer["ratings"] if rater in (None, rating["rater"])]
    return "" if not ratings else name_value(ratings[0]["value"], ratings[0]["scale"])


def name_value(value: float, scale: str) -> str:
    if scale == "stars":
        return f"{value * 2 + 3:.0f}/5"
    return "good" if value > 0 else "bad" if value < 0 else "neutral"


def text_of(answer: dict[str, Any]) -> str:
    if words := first_words(answer["text"] or ""):
        return words
    return first_words(answer["error"]) if answer["error"] else "no words" if answer["status"] != "pending" else "…"


def ago(seconds: float) -> str:
    """Roughly, in one unit: "40 s", "3 min", "5 h", "2 d"."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
