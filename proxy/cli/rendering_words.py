"""A prompt as the server reads it beside what the chat template of the weights makes of it, in words.

Owns these two lines, for `checks`, `status` and the page. They are of a fixed question (weights_compare.CHATS), never
of what somebody has asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LONGEST: Final = 300  # characters


def side_by_side(rendering: Mapping[str, Any] | None) -> list[str]:
    """Nothing where both are alike, or nobody looked."""
    return [f"{origin + ':':<8} {text}" for origin, text in describe_both(rendering)]


def describe_both(rendering: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Whose it is and what it says: the text in one line, and how many tokens it has, as far as that is known."""
    if rendering is None or rendering["weights"] is None:
        return []
    read, rendered = rendering["read"], rendering["made"]
    server = "it does not tell how it renders" if rendering["server"] is None else _quote(rendering["server"])
    return [
        ("server", server + _tokens(read, "it read")),
        ("weights", _quote(rendering["weights"]) + _tokens(rendered, "")),
    ]


def _quote(prompt: str) -> str:
    """A whole short prompt in one line."""
    return repr(prompt if len(prompt) <= LONGEST else prompt[:LONGEST] + "…")


def _tokens(count: int | None, verb: str) -> str:
    return "" if count is None else f" ({f'{verb} ' if verb else ''}{count} tokens)"
