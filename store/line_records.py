"""Records of lines and of their pointers, as they pass between the store and who uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMMON: Final = "common"  # the line that every home has


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which version new requests get. `previous` is what `rollback` returns to."""

    live: int
    previous: int
    changed_at: float
    reason: str
    actor: str = ""  # who made it live; "rlproxy" is the proxy itself


@dataclass(frozen=True, slots=True)
class StoredLine:
    """A line beside the common one."""

    name: str
    origin: int  # the version that it started from; 0 is the base
    created_at: float
    retired_at: float | None
    users: tuple[str, ...]  # whose requests it answers, where neither the model's name nor the key tells
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Numbers of a line by now."""

    completions: int = 0
    ratings: int = 0  # live, of people
    versions: int = 0
