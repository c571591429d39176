"""A depot on a disk that this machine and a cluster's nodes both see, and programs of this machine.

Owns what Slurm and Ray have in common: files of jobs by plain paths, and a keeper's command line. Not here: who starts
the command, and what a cluster says of it (slurm, ray_jobs), clusters without such a disk (bucket_jobs).
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

from trainer.places.bucket_jobs import BucketJobs
from trainer.places.depot import LOG, Depot, DepotError, JobState, keeper_arguments
from trainer.places.host import MARK
from trainer.places.job import RunOrder
from trainer.places.place import JobFiles, PlaceError, PlaceSettings, PlaceUnreachable
from trainer.places.shipment import ShipmentError

ROOT: Final = "~/.rlproxy-jobs"  # homes of a cluster are on a shared disk
CALL_S: Final = 60.0
SECRETS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")  # Slurm stores a job's environment


class ProgramFailed(PlaceUnreachable):
    """It ran, and ended with an error."""


class SharedDisk:
    """JobFiles on that disk. `folder` may be empty: ROOT."""

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

    async def attempt(self, id: str, order: RunOrder) -> str:
        folder = self.depot.folder(id)
        await asyncio.to_thread(self.depot.renew, folder)
        arguments = keeper_arguments(replace(order, folder=folder))
        return shlex.join([*self._python, "-P", "-m", "trainer.places.keeper", *arguments])

    def log(self, id: str) -> Path | None:
        return self.depot.folder(id) / LOG

    async def has_result(self, id: str) -> bool:
        return (self.depot.folder(id) / "result.json").is_file()

    async def look(self, id: str, offset: int) -> JobState:
        try:
            return await asyncio.to_thread(self.depot.look, id, offset)
        except DepotError as error:
            raise PlaceError(str(error)) from None

    async def stop(self, id: str) -> None:
        await asyncio.to_thread(self.depot.stop, id)

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


def job_files(settings: PlaceSettings, folder: str) -> JobFiles:
    """In the bucket where there is one, else on a shared disk."""
    return BucketJobs(settings, folder) if settings.bucket else SharedDisk(settings, folder)


async def run(*command: str) -> bytes:
    """The output of a program of this machine. Raises PlaceError where there is none, PlaceUnreachable
    where it does not answer, ProgramFailed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RLPROXY_") and name not in SECRETS
    }
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
