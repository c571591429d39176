"""Ids of completions: made here, or chosen by a client. Owns their form, and how those of further choices follow."""

from __future__ import annotations

import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
IDS_AT_ONCE: Final = 256
_RANDOM: Final[list[bytes]] = []
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]


def new_id() -> str:
    """`rl-` and 24 characters: milliseconds first, so that ids sort by time, then 80 random bits."""
    if not _RANDOM:  # many at once: the call gives the interpreter lock away, and has to get it back
        fresh = secrets.token_bytes(10 * IDS_AT_ONCE)
        _RANDOM.extend([fresh[at : at + 10] for at in range(0, len(fresh), 10)])
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(_RANDOM.pop(), "big")
    digits = []
    for _ in range(12):
        number, pair = divmod(number, 36 * 36)
        digits.append(_PAIRS[pair])
    return "rl-" + "".join(reversed(digits))


def choice_id(request_id: str, choice: int) -> str:
    """The id to rate choice `choice` by: the response's own id for the first, then `<id>.1`, `<id>.2`, …"""
    return request_id if choice == 0 else f"{request_id}.{choice}"
