"""Obstacles between the answers and a run, as the page says them: another prompt, another model, a prompt that was cut.

Owns which of it is said at the top of the inbox, in a line each, and all of it on Progress. Not here: how it is found
out (weights_check, rehearsal, cut_prompts).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.web.pages.filters import sentence


def urgent(prompts: Mapping[str, Any]) -> list[str]:
    """Reasons that keep answers from training as they were read, worst first. `prompts` as in `status`."""
    match, rehearsal, cut = prompts["match"], prompts["rehearsal"], prompts["cut"]
    lines = [match["line"] if match["stops"] else None, rehearsal["line"] if rehearsal["refused"] else None, cut]
    return [sentence(line) for line in lines if line]


def texts(prompts: Mapping[str, Any]) -> list[tuple[str, str | None, int | None]]:
    """Where server and weights differ: whose prompt, its text (None: not told), how many tokens (None: not known)."""
    rendering = prompts["match"]["rendering"]
    if rendering is None or rendering["weights"] is None:
        return []
    return [
        ("The server reads", rendering["server"], rendering["read"]),
        ("The chat template of the weights makes", rendering["weights"], rendering["made"]),
    ]
