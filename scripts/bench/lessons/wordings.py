"""Ways to put a comment into a prompt, to compare: the product's own, and others.

Owns the other ways. Not here: the product's (trainer.lessons.prompts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainer.lessons.prompts import HINT

Talk = list[dict[str, str]]
PRODUCT: Final = "hint"


def append(form: str) -> Callable[[str, str], Talk]:
    """After the question, in the same message."""
    return lambda question, comment: [{"role": "user", "content": question + form.format(hint=comment)}]


def prepend(question: str, comment: str) -> Talk:
    return [{"role": "user", "content": f"{comment}\n\n{question}"}]


def repeat(question: str, comment: str) -> Talk:
    """Before the question and after it."""
    return [{"role": "user", "content": f"{comment}\n\n{question}\n\n{comment}"}]


def system(question: str, comment: str) -> Talk:
    words = f"Follow these wishes of the user in every answer:\n{comment}"
    return [{"role": "system", "content": words}, {"role": "user", "content": question}]


WORDINGS: Final[dict[str, Callable[[str, str], Talk]]] = {
    PRODUCT: append(HINT),
    "plain": append("\n\n{hint}"),
    "important": append("\n\nImportant: {hint}"),
    "follow": append("\n\nFollow this in your answer: {hint}"),
    "before": prepend,
    "twice": repeat,
    "system": system,
}
