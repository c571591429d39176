"""A run elsewhere, as the proxy follows it: submit, progress, stop, collect.

Owns the order of it, and that nothing of it is lost or done twice. What is on disk is enough to go on after a kill. The
job's id is made of the run itself, so submitting it again finds it. A lost connection is waited for;
the job trains on. Not here: how a place does these things (ssh, slurm, ray_jobs), which files travel (parcel).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from trainer.formats.manifest import AdapterError
from trainer.places import parcel, shipment
from trainer.places.depot import JobState, weights_identity
from trainer.places.job import GRACE_S, RunOrder
from trainer.places.parcel import JobRecord
from trainer.places.place import PlaceError, PlaceSettings, TrainingPlace, own_version
from trainer.places.shipment import ShipmentError

WAIT_S: Final = 10.0  # that a place may keep a question for news
PAUSES_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)  # between tries to reach a place again
REMIND_S: Final = 600.0  # between two warnings that it is still not reached
COLLECT_TRIES: Final = 3  # of a result that does not arrive as it was sent
NOT_COLLECTED: Final = -1
STOPPED: Final = 143
FAR: Final = 1 << 62  # an offset behind any progress
T = TypeVar("T")


async def refusal(place: TrainingPlace, settings: PlaceSettings, weights: str, *, sealed: bool) -> str | None:
    """Why this place cannot train these weights now, in one sentence; None where it can."""
    if (reason := key_refusal(place, settings, sealed=sealed)) is not None:
        return reason
    name = settings.address
    try:
        answer = await place.hello(settings.weights or weights)
    except PlaceError as error:
        return f"train.where = {name}: {error}"
    if answer["version"] != own_version():
        return (
            f"train.where = {name}: it has rlproxy {answer['version']}, and this is {own_version()}: "
            "install the same version there."
        )
    if answer["problem"]:
        return f"train.where = {name}: {answer['problem']}"
    identity = await asyncio.to_thread(weights_identity, weights)
    if identity and answer["identity"] and identity != answer["identity"]:
        return (
            f"train.where = {name}: the weights there ({settings.weights or weights}) are not those of this machine "
            f"({weights}): train.where_weights names the folder that has them."
        )
    return None


def key_refusal(place: TrainingPlace, settings: PlaceSettings, *, sealed: bool) -> str | None:
    """Why an encrypted run stays on this machine; None where it need not."""
    if not sealed:
        return None
    if not settings.takes_keys:
        return (
            f"train.where = {settings.address}: this home is encrypted, and the key of a run would leave this machine: "
            "train.where_takes_keys = true allows it."
        )
    if not place.takes_keys:
        return f"train.where = {settings.address}: the key of an encrypted run would lie on a disk there, so none goes."
    return None


async def submit(place: TrainingPlace, settings: PlaceSettings, weights: str, order: RunOrder) -> RemoteJob:
    """Bring the run there, unless it is there, and start an attempt, unless one is under way. Raises PlaceError."""
    if (reason := key_refusal(place, settings, sealed=order.key is not None)) is not None:
        raise PlaceError(reason)
    folder = order.folder
    await asyncio.to_thread(parcel.settle, folder)
    files = await asyncio.to_thread(parcel.files_of, folder)
    id = await asyncio.to_thread(parcel.job_id, folder, files)
    record = JobRecord.read(folder)
    if record is not None and record.id != id:  # something was forgotten out of the folder
        await forget(place, folder)
        record = None
    if record is None:
        size = await asyncio.to_thread(parcel.progress_size, folder)
        record = JobRecord(settings.address, id, size, settings.bucket)
        await asyncio.to_thread(record.write, folder)
    job = RemoteJob(place, record, folder)
    state = await place.look(id, job.offset, 0)
    if state.state == "absent":
        archive = await asyncio.to_thread(parcel.pack, folder, files)
        await place.receive(id, archive, settings.weights or weights)
        await asyncio.to_thread(parcel.settle, folder)
    has_started = not state.has_result and await place.start(id, order)
    job.follow(was_under_way=not has_started)
    return job


class RemoteJob:
    def __init__(self, place: TrainingPlace, record: JobRecord, folder: Path) -> None:
        self.pid: int | None = None
        self.exceeded: str | None = None
        self.was_under_way = False
        self._place, self._record, self._folder = place, record, folder
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._following: asyncio.Task[int]

    @property
    def offset(self) -> int:
        """How far the place's progress.jsonl has been copied: kept nowhere else than in the copy."""
        return max(0, parcel.progress_size(self._folder) - self._record.progress_from)

    def follow(self, *, was_under_way: bool) -> None:
        self.was_under_way = was_under_way
        self._following = asyncio.create_task(self._follow(), name=f"run-{self._record.id}")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        while (event := await self._queue.get()) is not None:
            yield event
        self._queue.put_nowait(None)  # for whoever asks again

    async def wait(self) -> int:
        return await asyncio.shield(self._following)

    async def terminate(self) -> None:
        """A place that does not answer trains on, until it can be told: the run's next attempt, or `forget`."""
        if self._following.done():
            return
        with contextlib.suppress(PlaceError, TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await insist(lambda: self._place.stop(self._record.id), lambda error: None)
                # its own grace for a step and a checkpoint, and the way of the news
            async with asyncio.timeout(2 * GRACE_S):
                await asyncio.shield(self._following)
        await self.leave()

    async def leave(self) -> None:
        """Follow it no more."""
        if self._following.done():
            return
        self._following.cancel()
        await asyncio.wait({self._following})

    async def _follow(self) -> int:
        try:
            while not (state := await insist(self._look, self._warn)).is_over:
                self._tell(state.progress)
            while state.progress:
                self._tell(state.progress)
                state = await insist(self._look, self._warn)
            self.exceeded = state.exceeded
            if state.has_result:
                return await self._collect(state)
            if state.note:
                await asyncio.to_thread(parcel.note, self._folder, f"{self._record.place}: {state.note}")
            return NOT_COLLECTED if state.status is None else state.status
        except asyncio.CancelledError:
            return STOPPED
        finally:
            self._queue.put_nowait(None)

    async def _look(self) -> JobState:
        return await self._place.look(self._record.id, self.offset, WAIT_S)

    def _tell(self, progress: str) -> None:
        """The copy first: what is told is on disk, and is not told again after a kill."""
        if not progress:
            return
        with (self._folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(progress)
        for line in progress.splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(event := json.loads(line), dict):
                    self._queue.put_nowait(event)

    def _warn(self, error: PlaceError) -> None:
        message = f"{self._record.place} is asked again: {error} The run trains on there, if it can."
        self._queue.put_nowait({"event": "warning", "message": message})

    async def _collect(self, state: JobState) -> int:
        archive = self._folder / parcel.ARCHIVE
        for _ in range(COLLECT_TRIES):
            await insist(lambda: self._place.send(self._record.id, archive), self._warn)
            try:
                await asyncio.to_thread(parcel.take_result, self._folder, archive)
                return 0 if state.status is None else state.status
            except (ShipmentError, AdapterError, OSError) as error:
                self._warn(PlaceError(f"its result did not arrive: {error}"))
        return NOT_COLLECTED


async def forget(place: TrainingPlace, folder: Path, *, keep_step: bool = False) -> None:
    """End what the place still has of this run. `keep_step`: its last step comes back first. Raises PlaceError,
    TimeoutError."""
    record = JobRecord.read(folder)
    if record is None:
        return
    await end(place, record, folder if keep_step else None)
    await asyncio.to_thread(shipment.clear, folder / parcel.RECORD)


async def end(place: TrainingPlace, record: JobRecord, folder: Path | None = None) -> None:
    """Stop this job and remove it. `folder`: gets its last step. Raises PlaceError, TimeoutError."""
    state = await place.look(record.id, 0, 0)
    if not state.is_over:
        await place.stop(record.id)
        async with asyncio.timeout(2 * GRACE_S):
            while not (state := await place.look(record.id, FAR, WAIT_S)).is_over:
                pass
    if folder is not None and state.state != "absent":
        await place.send(record.id, folder / parcel.ARCHIVE)
        with contextlib.suppress(ShipmentError, OSError):  # then it begins anew
            await asyncio.to_thread(parcel.take_checkpoint, folder, folder / parcel.ARCHIVE)
    await place.remove(record.id)


async def insist(call: Callable[[], Awaitable[T]], warn: Callable[[PlaceError], None]) -> T:
    """Try again until the place answers; `warn` at the first failure, and now and then."""
    waited_s, warned_s, number = 0.0, -REMIND_S, 0
    while True:
        try:
            return await call()
        except PlaceError as error:
            if waited_s - warned_s >= REMIND_S:
                warned_s = waited_s
                warn(error)
        pause = PAUSES_S[min(number, len(PAUSES_S) - 1)]
        await asyncio.sleep(pause)
        waited_s, number = waited_s + pause, number + 1
