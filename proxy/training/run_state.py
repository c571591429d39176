"""State of training: the run under way, what keeps one waiting, and what a person has said about it.

The run supervisor alone changes it; everybody else reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from store.records import Run


@dataclass(slots=True)
class RunState:
    run: Run | None = None  # the one under way
    progress: dict[str, Any] = field(default_factory=dict)  # its last events, by kind
    blocking_rule: str | None = None  # the rule that keeps the open run from training
    trainer: int | None = None  # the process that trains
    stalled: str | None = None  # why the trainer was ended, where it had stopped saying anything
    paused: bool = False
    by_hand: int | None = None  # the run that somebody asked for: it does not wait for its hours
