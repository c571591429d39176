"""A rubric of the user's own: criteria, each with its grades in words, from the worst to the best.

Owns what grades come to: one value, the mean of them all, and a line for each that goes into the rating's comment. So a
disliked answer is taught by the very words of its grades. Not here: the markup of the form, the rating (inbox).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from config.sections import Criterion
from proxy.core.errors import BadRequest

FIELD: Final = "grade-"  # the name of a criterion's field in a form, before its number


class Graded(NamedTuple):
    value: float  # -1 to 1
    comment: str


def graded(form: Mapping[str, Any], criteria: Sequence[Criterion]) -> Graded | None:
    """Sum up a form's grades; None where it has none. Raises BadRequest."""
    values, lines = [], []
    for number, criterion in enumerate(criteria):
        text = form.get(f"{FIELD}{number}")
        if text in (None, ""):
            continue
        if not (
            isinstance(text, str) and text.isdecimal() and len(text) < 3 and 1 <= int(text) <= len(criterion.grades)
        ):
            raise BadRequest(f"A grade of {criterion.name} is 1 to {len(criterion.grades)}; nothing was rated.")
        grade = int(text)
        values.append(2 * (grade - 1) / (len(criterion.grades) - 1) - 1)
        lines.append(f"{criterion.name}: {criterion.grades[grade - 1]} ({grade} of {len(criterion.grades)})")
    return Graded(round(sum(values) / len(values), 4), "\n".join(lines)) if values else None
