"""A cluster of Slurm, from a machine of it where `sbatch` is, over a disk that both see.

Owns the jobs: one by the name of the run's id, found by that name after a kill, and never two at work (a singleton).
What Slurm says of a job is its state; what the files say is how it ended. Not here: the files (depot).
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

from config.places import PlaceAddress
from trainer.io.run_folder import write_atomic
from trainer.places.depot import LOG, Depot, DepotError, JobState, keeper_arguments
from trainer.places.host import MARK
from trainer.places.job import RunOrder
from trainer.places.place import PlaceError, PlaceSettings, PlaceUnreachable
from trainer.places.shipment import ShipmentError

ROOT: Final = "~/.rlproxy-jobs"  # homes of a cluster are on a shared disk
SCRIPT: Final = "job.sh"
NAME: Final = "rlproxy-"  # before the id
CALL_S: Final = 60.0
LOOK_S: Final = 2.0  # between two questions to the controller
WARN_S: Final = 90  # before a time limit, or a preemption with a grace, the keeper is told to stop
WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})
OVER: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


class SlurmPlace:
    def __init__(self, settings: PlaceSettings, address: PlaceAddress) -> None:
        self.takes_keys = False  # a job's script and its environment lie on disks of the cluster
        self._python, self._options = shlex.split(settings.python), settings.options
        self._depot = Depot(Path(address.folder or ROOT).expanduser())

    async def hello(self, weights: str) -> Mapping[str, Any]:
        await self._run("squeue", "--version")
        output = await self._run(
            *self._python, "-P", "-m", "trainer.places.host", str(self._depot.root), "hello", weights
        )
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
                await asyncio.to_thread(self._depot.receive, id, source, weights)
        except (ShipmentError, DepotError, OSError) as error:
            raise PlaceError(f"{self._depot.root}: {error}") from None

    async def start(self, id: str, order: RunOrder) -> bool:
        folder = self._depot.folder(id)
        if (await self._slurm_state(id))[0] or (folder / "result.json").is_file():
            return False
        command = [*self._python, "-P", "-m", "trainer.places.keeper", *keeper_arguments(replace(order, folder=folder))]
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"  # the keeper itself gets the batch shell's signals
        await asyncio.to_thread(self._depot.renew, folder)
        await asyncio.to_thread(write_atomic, folder / SCRIPT, script.encode())
        await self._run(
            "sbatch", "--parsable", f"--job-name={NAME}{id}", "--dependency=singleton", "--no-requeue",
            f"--signal=B:TERM@{WARN_S}", f"--output={folder / LOG}", "--open-mode=append", f"--chdir={folder}",
            *self._options, str(folder / SCRIPT),
        )  # fmt: skip
        return True

    async def look(self, id: str, offset: int, wait_s: float) -> JobState:
        active, ended = await self._slurm_state(id)  # before the files: what it wrote at its end is there then
        try:
            state = await asyncio.to_thread(self._depot.look, id, offset)
        except DepotError as error:
            raise PlaceError(str(error)) from None
        if state.state == "absent":
            return state
        if active:
            if not state.progress:
                await asyncio.sleep(min(wait_s, LOOK_S))
            return replace(state, state="under way", has_result=False, note=active)
        if state.state == "under way":  # the controller has not said so yet, or no more
            return replace(state, note="the job is ending")
        exceeded = state.exceeded
        if ended == "OUT_OF_MEMORY" and not state.has_result:
            exceeded = "Slurm ended it for its memory: ask for more in train.where_options (--mem)"
        return replace(state, exceeded=exceeded, note=ended or "")

    async def stop(self, id: str) -> None:
        """One that waits for its turn goes out of the queue, one at work stops at its next step."""
        await asyncio.to_thread(self._depot.stop, id)
        if (await self._slurm_state(id))[0] in WAITING:
            await self._run("scancel", "--state=PENDING", f"--name={NAME}{id}")

    async def send(self, id: str, archive: Path) -> None:
        try:
            with os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
                await asyncio.to_thread(self._depot.send, id, sink)
        except (DepotError, OSError) as error:
            raise PlaceError(f"{self._depot.root}: {error}") from None

    async def remove(self, id: str) -> None:
        if (await self._slurm_state(id))[0]:
            await self._run("scancel", f"--name={NAME}{id}")
            raise PlaceUnreachable(f"the job {NAME}{id} is still ending.")
        try:
            await asyncio.to_thread(self._depot.remove, id)
        except (DepotError, OSError) as error:
            raise PlaceError(f"{self._depot.root}: {error}") from None

    async def _slurm_state(self, id: str) -> tuple[str | None, str | None]:
        """The state of the job that waits or works, and of the last one that has ended, as far as Slurm still knows."""
        output = await self._run("squeue", "--noheader", "--states=all", f"--name={NAME}{id}", "--format=%i|%T")
        active, ended = None, None
        for line in sorted(output.decode("utf-8", "replace").split(), key=_number):
            state = line.partition("|")[2]
            if state in OVER:
                ended = state
            elif state:
                active = state
        return active, ended

    async def _run(self, *command: str) -> bytes:
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
            message = f"`{Path(command[0]).name}` failed ({lines[-1].rstrip('.')})."
            raise PlaceError(message) if command[0] == "sbatch" else PlaceUnreachable(message)
        return output


def _number(line: str) -> int:
    digits = line.partition("|")[0].partition("_")[0]
    return int(digits) if digits.isdecimal() else 0
