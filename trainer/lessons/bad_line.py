"""Why a line of samples.jsonl cannot be used. A bad line costs that line."""

from __future__ import annotations


class BadLine(Exception):
    """One reason why this line cannot be used."""


class TooLong(BadLine):
    """Longer than max_seq_len, and no turn can be left out."""
