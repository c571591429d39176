"""Hindsight: what people say next trains without a judge (experimental).

Owns who may have it: a model large enough to tell from a follow-up which of its words were meant. SDPO (arXiv
2601.20802) gained much at 4 to 8 B parameters, little at 1.7 B, and lost at 1.5 B. No label says what a follow-up
means, so no agreement with people can be measured. Not here: the advantage (trainer.lessons.hindsight).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from config.sections import Judge as Section
from store.learning.labels import HINDSIGHT, NEXT, TrustedJudge
from trainer.launch import parameters

LEAST: Final = 3e9  # parameters
WEIGHT: Final = 0.5  # where a person's rating weighs 1
SAID_LABEL: Final = "said"  # in place of a label
CONFIG: Final = "1"  # another form of the block would be another one


class Hindsight:
    def __init__(self, settings: Section, weights: Callable[[], str | None]) -> None:
        self._settings = settings
        self._weights = weights
        self._sizes: dict[str | None, int | None] = {}

    @property
    def on(self) -> bool:
        return self._settings.mode == "hindsight"

    def blocking_reason(self) -> str | None:
        """Why nothing is learned that way; None where it is."""
        if not self.on:
            return "judge.mode is not hindsight"
        if self._settings.small_models:
            return None
        count = self._parameters()
        if count is None:
            return "hindsight takes about 3 B parameters, and how many this model has is not known (judge.small_models)"
        if count < LEAST:
            return f"hindsight takes about 3 B parameters, and this model has {count / 1e9:.2g} B (judge.small_models)"
        return None

    def trusted(self) -> list[TrustedJudge]:
        return [] if self.blocking_reason() else [TrustedJudge(HINDSIGHT, CONFIG, {NEXT: WEIGHT})]

    def _parameters(self) -> int | None:
        weights = self._weights()
        if weights not in self._sizes:
            self._sizes[weights] = parameters(weights)
        return self._sizes[weights]
