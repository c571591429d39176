"""A depot on a disk that this machine and a cluster's nodes both see, and programs of this machine.

Owns what Slurm and Ray have in common: files of jobs by plain paths, and a keeper's command line. Not here: who starts
the command, and what a cluster says of it (slurm, ray_jobs).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainer.places.depot import Depot, DepotError, JobState, keeper_arguments
from trainer.places.host import MARK
from trainer.places.job import RunOrder
from trainer.places.place import PlaceError, PlaceSettings, PlaceUnreachable
from trainer.places.shipment import ShipmentError

ROOT: Final = "~/.rlproxy-jobs"  # homes of a cluster are on a shared disk
CALL_S: Final = 60.0


class ProgramFailed(PlaceUnreachable):
    """It ran, and ended with an error."""


class SharedDisk:
    """`folder` may be empty: ROOT."""

    def __init__(self, settings: PlaceSettings, folder: str) -> None:
        self._python = shlex.split(settings.python)
        self.depot = Depot(Path(folder or ROOT).expanduser())

    async def hello(self, weights: str) -> Mapping[str, Any]:
        """The cluster's Python on this machine answers, as TrainingPlace.hello."""
        output = await run(*self._python, "-P", "-m", "trainer.places.host", str(self.depot.root), "hello", weights)
        try:
            answer: Mapping[str, Any] = json.loads(output.partition(MARK)[2])["answer"]
        except (ValueError, KeyError, TypeError):
            raise PlaceError(
                f"{self._python[0]} answered something that rlproxy does not: {output[-100:]!r}."
            ) from None
        return answer

    async def receive(self, id: str, archive: Path, weights: str) -> None:
        try:
            with await asyncio.to_thread(archive.open, "rb") as source:
                await asyncio.to_thread(self.depot.receive, id, source, weights)
        except (ShipmentError, DepotError, OSError) as error:
            raise PlaceError(f"{self.depot.root}: {error}") from None

    def keeper_command(self, order: RunOrder, folder: Path) -> str:
        """For a shell: one attempt of the job in this folder."""
        arguments = keeper_arguments(replace(order, folder=folder))
        return shlex.join([*self._python, "-P", "-m", "trainer.places.keeper", *arguments])

    async def look(self, id: str, offset: int) -> JobState:
        try:
            return await asyncio.to_thread(self.depot.look, id, offset)
        except DepotError as error:
            raise PlaceError(str(error)) from None

    async def send(self, id: str, archive: Path) -> None:
        try:
            with os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
                await asyncio.to_thread(self.depot.send, id, sink)
        except (DepotError, OSError) as error:
            raise PlaceError(f"{self.depot.root}: {error}") from None

    async def remove(self, id: str) -> None:
        try:
            await asyncio.to_thread(self.depot.remove, id)
        except (DepotError, OSError) as error:
            raise PlaceError(f"{self.depot.root}: {error}") from None


async def run(*command: str) -> bytes:
    """The output of a program of this machine. Raises PlaceError where there is none, PlaceUnreachable
    where it does not answer, ProgramFailed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLPROXY_")}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
    except FileNotFoundError:
        raise PlaceError(f"there is no `{command[0]}` on this machine.") from None
    try:
        async with asyncio.timeout(CALL_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise PlaceUnreachable(f"`{command[0]}` did not answer within {CALL_S:.0f} s.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"status {process.returncode}"]
        raise ProgramFailed(f"`{Path(command[0]).name}` failed ({lines[-1].rstrip('.')}).")
    return output
