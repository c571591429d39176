"""A run's look at its prompts, without the weights: which lines would it refuse, and why?

Owns nothing of its own: it does what a run does before it loads the model (samples, rendering), with the tokeniser
alone. Not here: which lines are tried, and when (the proxy's rehearsal).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainer.lessons import samples
from trainer.lessons.line_members import BadLine
from trainer.lessons.samples import Template

RATED: Final = {"reward": 0.0, "weight": 1.0}  # what a line of samples.jsonl has besides


def refusals(lines: Sequence[Mapping[str, Any]], template: Template, *, max_seq_len: int) -> list[str | None]:
    """For each line, the reason why a run would not train on it; None where it would."""
    template = template.as_served(samples.known(lines, template))
    return [_refusal({**line, **RATED}, template, max_seq_len) for line in lines]


def _refusal(line: Mapping[str, Any], template: Template, max_seq_len: int) -> str | None:
    try:
        samples.parse(line, str(line.get("completion")), template, max_seq_len=max_seq_len)
    except BadLine as error:
        return str(error)
    return None
