"""User-defined signals: `score(completion, next)` of a person's own Python file.

Owns what it may return: a number in [-1, 1], `{"reward", "comment"}`, or None. Its file is known by its hash: another
file is another judge, and what the earlier one rated is taken back. Not here: the process that it runs in
(proxy.core.own_code.child), which turns it sees (judging).
"""

from __future__ import annotations

from typing import Any, Final

from config.sections import Signals
from proxy.core.own_code.child import OwnCode, OwnCodeFailed
from proxy.core.own_code.reward import OwnReward, reward_of

WEIGHT: Final = 0.5  # of its ratings, where a person's weighs 1


class OwnSignals:
    """The module of the settings. One call at a time."""

    def __init__(self, settings: Signals) -> None:
        self._code: OwnCode | None = None
        if (file := settings.module) is not None:
            self._code = OwnCode(
                file, "score", timeout_s=settings.timeout_s, memory_mb=settings.memory_mb, settings="signals."
            )

    @property
    def on(self) -> bool:
        return self._code is not None

    def hash(self) -> str:
        """Hash of the file as it is now. Raises OwnCodeFailed."""
        return self._needed.hash()

    async def score(self, completion: dict[str, Any], following: dict[str, Any]) -> OwnReward | None:
        """Raises OwnCodeFailed: this turn has no score, and the next one may."""
        value, _ = await self._needed.call(completion, following)
        return reward_of(value)

    async def stop(self) -> None:
        if self._code is not None:
            await self._code.stop()

    @property
    def _needed(self) -> OwnCode:
        if self._code is None:
            raise OwnCodeFailed("signals.module is not set")
        return self._code
