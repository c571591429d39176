"""A cluster of Slurm, from a machine of it where `sbatch` is.

Owns the jobs: one by the name of the run's id, found by that name after a kill, and never two at work (a singleton).
What Slurm says of a job is its state; what the files say is how it ended. Not here: the files (shared_disk,
bucket_jobs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from config.places import PlaceAddress
from trainer.places.depot import JobState
from trainer.places.job import RunOrder
from trainer.places.place import PlaceError, PlaceSettings, PlaceUnreachable
from trainer.places.shared_disk import ProgramFailed, job_files, run

NODE_LOG: Final = Path("/tmp/rlproxy-%j.log")  # noqa: S108  on the node, where no disk is shared
NAME: Final = "rlproxy-"  # before the id
LOOK_S: Final = 2.0  # between two questions to the controller
WARN_S: Final = 90  # before a time limit, or a preemption with a grace, the keeper is told to stop
WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})
OVER: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


class SlurmPlace:
    def __init__(self, settings: PlaceSettings, address: PlaceAddress) -> None:
        self.takes_keys = False  # a job's script and its environment lie on disks of the cluster
        self._options = settings.options
        self._files = job_files(settings, address.folder)

    async def hello(self, weights: str) -> Mapping[str, Any]:
        await run("squeue", "--version")
        return await self._files.hello(weights)

    async def receive(self, id: str, archive: Path, weights: str) -> None:
        await self._files.receive(id, archive, weights)

    async def start(self, id: str, order: RunOrder) -> bool:
        if (await self._slurm_state(id))[0] or await self._files.has_result(id):
            return False
        command = await self._files.attempt(id, order)  # it gets the batch shell's signals
        log = self._files.log(id) or NODE_LOG
        try:
            await run(
                "sbatch", "--parsable", f"--job-name={NAME}{id}", "--dependency=singleton", "--no-requeue",
                f"--signal=B:TERM@{WARN_S}", f"--output={log}", "--open-mode=append", f"--chdir={log.parent}",
                *self._options, f"--wrap=exec {command}",
            )  # fmt: skip
        except ProgramFailed as error:
            raise PlaceError(str(error)) from None
        return True

    async def look(self, id: str, offset: int, wait_s: float) -> JobState:
        active, ended = await self._slurm_state(id)  # before the files: what it wrote at its end is there then
        state = await self._files.look(id, offset)
        if state.state == "absent" and not active:
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
        return replace(state, exceeded=exceeded, note=state.note or ended or "")

    async def stop(self, id: str) -> None:
        """One that waits for its turn goes out of the queue, one at work stops at its next step."""
        await self._files.stop(id)
        if (await self._slurm_state(id))[0] in WAITING:
            await run("scancel", "--state=PENDING", f"--name={NAME}{id}")

    async def send(self, id: str, archive: Path) -> None:
        await self._files.send(id, archive)

    async def remove(self, id: str) -> None:
        if (await self._slurm_state(id))[0]:
            await run("scancel", f"--name={NAME}{id}")
            raise PlaceUnreachable(f"the job {NAME}{id} is still ending.")
        await self._files.remove(id)

    async def _slurm_state(self, id: str) -> tuple[str | None, str | None]:
        """The state of the job that waits or works, and of the last one that has ended, as far as Slurm still knows."""
        output = await run("squeue", "--noheader", "--states=all", f"--name={NAME}{id}", "--format=%i|%T")
        active, ended = None, None
        for line in sorted(output.decode("utf-8", "replace").split(), key=_number):
            state = line.partition("|")[2]
            if state in OVER:
                ended = state
            elif state:
                active = state
        return active, ended


def _number(line: str) -> int:
    digits = line.partition("|")[0].partition("_")[0]
    return int(digits) if digits.isdecimal() else 0
