"""Rewards as a function of the user's own returns them: a number, a number with a comment, or nothing."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from proxy.core.own_code.child import OwnCodeFailed

MOST_COMMENT: Final = 2000


class OwnReward(NamedTuple):
    value: float  # -1 to 1
    comment: str


def reward_of(value: Any) -> OwnReward | None:
    """Raises OwnCodeFailed for what is neither a number from -1 to 1, nor {"reward", "comment"}, nor None."""
    comment: Any = ""
    if value is None:
        return None
    if isinstance(value, dict):
        value, comment = value.get("reward"), value.get("comment") or ""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        raise OwnCodeFailed("it returned neither a number from -1 to 1, nor {reward, comment}, nor None")
    if not isinstance(comment, str):
        raise OwnCodeFailed("its comment is not text")
    return OwnReward(float(value), comment[:MOST_COMMENT])
