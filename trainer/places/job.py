"""A job: a run under way, in any place.

Owns the job as the proxy sees it, and the order that starts one. A job need not have a process on this machine. Not
here: what a place does for it (local, remote).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

GRACE_S: Final = 30.0  # an optimiser step of a small model on a busy machine, and its checkpoint


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A run folder, and how it trains."""

    folder: Path
    threads: int  # 0: by the machine that trains
    nice: int
    max_memory_gb: float = 0  # 0: no limit
    key: bytes | None = field(default=None, repr=False)  # opens the samples


class Job(Protocol):
    """A run under way."""

    pid: int | None  # its process on this machine, where it has one
    exceeded: str | None  # the limit that it was killed for
    was_under_way: bool  # it was found again, as an rlproxy before this one had started it

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield each line as it is printed; ends when the run does."""

    async def wait(self) -> int: ...

    async def terminate(self) -> None:
        """Ask it to stop after its current step; kill it when it does not."""

    async def leave(self) -> None:
        """rlproxy ends: a child of this machine stops at its next step, a run elsewhere trains on."""
