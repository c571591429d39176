"""A place elsewhere: what each one can do for a run, and what may be wrong with it.

Owns the seam that ssh and slurm stand behind, and the one for the files of a cluster. Not here: the order of things in
a run (remote).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from trainer.child_process import LaunchError
from trainer.places.depot import JobState
from trainer.places.job import RunOrder


class PlaceError(LaunchError):
    """A place cannot take, or give, what it was asked for. One sentence; no attempt and no rating was spent."""


class PlaceUnreachable(PlaceError):
    """It does not answer now: the same may go well later."""


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """`train.where` and what belongs to it."""

    address: str = "local"
    python: str = "python3"  # that has rlproxy, in the place
    weights: str = ""  # in the place; empty: as here
    options: tuple[str, ...] = ()  # of ssh or sbatch
    bucket: str = ""  # that jobs of a cluster go through; empty: a disk that its nodes see
    takes_keys: bool = False  # whether the key of an encrypted run may go there
    takes_texts: bool = False  # whether a Tinker server may read what trains


class TrainingPlace(Protocol):
    """Each call but `receive` and `send` is short; all raise PlaceError."""

    takes_keys: bool  # whether a key can get there without lying on a disk

    async def hello(self, weights: str) -> Mapping[str, Any]:
        """`version` of rlproxy, the `problem` that keeps it from training these weights, their `identity`."""

    async def receive(self, id: str, archive: Path, weights: str) -> None: ...

    async def start(self, id: str, order: RunOrder) -> bool:
        """Start an attempt, unless one is under way; tells whether it did. `order.folder` is of this machine."""

    async def look(self, id: str, offset: int, wait_s: float) -> JobState: ...

    async def stop(self, id: str) -> None: ...

    async def send(self, id: str, archive: Path) -> None: ...

    async def remove(self, id: str) -> None: ...


class JobFiles(Protocol):
    """Files of a cluster's jobs, on a shared disk or in a bucket; all calls raise PlaceError."""

    async def hello(self, weights: str) -> Mapping[str, Any]:
        """Return what TrainingPlace.hello does."""

    async def receive(self, id: str, archive: Path, weights: str) -> None: ...

    async def attempt(self, id: str, order: RunOrder) -> str:
        """Prepare the next attempt; what the last one left as its end counts no more. Returns its command, for a
        shell of a node."""

    def log(self, id: str) -> Path | None:
        """The file that a job's output goes to; None where no node sees one."""

    async def has_result(self, id: str) -> bool: ...

    async def look(self, id: str, offset: int) -> JobState: ...

    async def stop(self, id: str) -> None: ...

    async def send(self, id: str, archive: Path) -> None: ...

    async def remove(self, id: str) -> None: ...


def own_version() -> str:
    try:
        return version("rlproxy")
    except PackageNotFoundError:
        return "unknown"
