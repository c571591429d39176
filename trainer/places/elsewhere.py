"""Which place a run trains in, and what is left of it in another.

Owns the choice by `train.where`, and the move of a run whose setting has changed. A place that did not answer is told
later that a run has ended. Not here: one run (remote).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from config.places import parse
from trainer.child_process import LaunchError
from trainer.places import parcel, remote
from trainer.places.job import RunOrder
from trainer.places.parcel import JobRecord
from trainer.places.place import PlaceError, PlaceSettings, TrainingPlace
from trainer.places.ray_jobs import RayPlace
from trainer.places.remote import RemoteJob
from trainer.places.slurm import SlurmPlace
from trainer.places.ssh import SSHPlace
from trainer.places.tinker_service import TinkerService

OWED: Final = "elsewhere.owed.json"  # a job that its place could not be told to end
SETTLE_S: Final = 600.0  # between two tries to tell it


def open_place(settings: PlaceSettings) -> TrainingPlace | None:
    """None: this machine. Raises ValueError (train.where, train.where_options)."""
    address = parse(settings.address)
    if address.kind in ("local", "tinker"):  # a child of this machine, whoever takes the steps
        return None
    if address.kind == "ssh":
        return SSHPlace(settings, address)
    return SlurmPlace(settings, address) if address.kind == "slurm" else RayPlace(settings, address)


class Elsewhere:
    def __init__(self, settings: PlaceSettings) -> None:
        address = parse(settings.address)
        # Over ssh the archive itself travels, whatever bucket there is.
        self.settings = settings if address.kind in ("slurm", "ray") else replace(settings, bucket="")
        self.place = open_place(settings)
        self.tinker = TinkerService(settings, address) if address.kind == "tinker" else None
        self._settled_at = -SETTLE_S

    async def refusal(self, weights: str, *, sealed: bool) -> str | None:
        """Why no run can train there now, in one sentence; None on this machine."""
        if self.tinker is not None:
            return await self.tinker.refusal(weights)
        if self.place is None:
            return None
        return await remote.refusal(self.place, self.settings, weights, sealed=sealed)

    async def start(self, order: RunOrder) -> RemoteJob | None:
        """None: it trains on this machine, with whatever it had come to elsewhere. Raises PlaceError."""
        record = JobRecord.read(order.folder)
        place = (self.settings.address, self.settings.bucket)
        if record is not None and (record.place, record.bucket) != place:
            await self._end(order.folder, keep_step=True)
        if self.place is None:
            return None
        try:
            weights = await asyncio.to_thread(parcel.weights_of, order.folder)
            return await remote.submit(self.place, self.settings, weights, order)
        except (OSError, ValueError, KeyError) as error:
            raise LaunchError(f"run {order.folder.name} cannot be sent to {self.settings.address}: {error}.") from None

    async def forget(self, folder: Path) -> None:
        """The run has ended: nothing of it stays elsewhere. A place that does not answer is told later (settle)."""
        await asyncio.to_thread(parcel.settle, folder)
        await self._end(folder, keep_step=False)

    async def settle(self, runs: Path, unfinished: Collection[Path]) -> None:
        """Tell places what they could not be told: now and then."""
        if time.monotonic() - self._settled_at < SETTLE_S:
            return
        self._settled_at = time.monotonic()
        owed_paths, record_paths = await asyncio.to_thread(_left_in, runs)
        for path in owed_paths:
            await self._end_owed(path)
        for path in record_paths:
            if path.parent not in unfinished:
                await self.forget(path.parent)

    async def _end(self, folder: Path, *, keep_step: bool) -> None:
        record = JobRecord.read(folder)
        if record is None:
            return
        try:
            await remote.forget(self._place_of(record), folder, keep_step=keep_step)
        except (PlaceError, TimeoutError):
            await asyncio.to_thread((folder / parcel.RECORD).replace, folder / OWED)

    async def _end_owed(self, path: Path) -> None:
        record = JobRecord.read(path.parent, path.name)
        try:
            if record is not None:  # else it is of nobody
                await remote.end(self._place_of(record), record)
            await asyncio.to_thread(path.unlink)
        except (PlaceError, TimeoutError):
            return

    def _place_of(self, record: JobRecord) -> TrainingPlace:
        try:
            place = open_place(replace(self.settings, address=record.place, bucket=record.bucket))
        except ValueError as error:
            raise PlaceError(str(error)) from None
        if place is None:
            raise PlaceError(f"{record.place} is not a place elsewhere.")
        return place


def _left_in(runs: Path) -> tuple[list[Path], list[Path]]:
    """Files of jobs that are owed, and of jobs that may be under way."""
    return sorted(runs.glob(f"r*/{OWED}")), sorted(runs.glob(f"r*/{parcel.RECORD}"))
