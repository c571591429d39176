"""Jobs of a cluster whose files travel through a bucket: the proxy's end.

Owns which objects a job has. Each attempt writes under its own name, and the job's record says which attempt counts. So
a node that was taken for dead changes nothing. Not here: the node's end (bucket_keeper), objects (bucket).

    jobs/ID/run.tar            the run folder, with its hashes
    jobs/ID/job.json           written last: the job is there
    jobs/ID/ATTEMPT/           state.tar, progress.jsonl, result.tar; ended.json last
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from trainer.places.bucket import Bucket, BucketError
from trainer.places.depot import MOST_PROGRESS, JobState, keeper_arguments, weights_identity
from trainer.places.job import RunOrder
from trainer.places.parcel import weights_of
from trainer.places.place import PlaceError, PlaceSettings, PlaceUnreachable, own_version

RECORD, RUN, STATE, RESULT = "job.json", "run.tar", "state.tar", "result.tar"
PROGRESS, ENDED = "progress.jsonl", "ended.json"
CALL_S: Final = 60.0  # of a call that carries no archive
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BucketJob:
    """A job as its record has it."""

    weights: str  # there
    version: str  # of rlproxy, that packed it
    attempt: str = ""  # the one that counts; empty before the first
    previous: str = ""  # the attempt that this one goes on from
    identity: str | None = None  # of the weights, as depot.weights_identity
    stopped: bool = False

    @classmethod
    def read(cls, bucket: Bucket, id: str) -> BucketJob | None:
        members = bucket.read_json(f"jobs/{id}/{RECORD}")
        try:
            return None if members is None else cls(**members)
        except TypeError:
            raise BucketError(f"{bucket.url}/jobs/{id}/{RECORD} is of another version of rlproxy.") from None

    def write(self, bucket: Bucket, id: str) -> None:
        bucket.write(f"jobs/{id}/{RECORD}", json.dumps(asdict(self)).encode())

    def latest(self, bucket: Bucket, id: str) -> str:
        """The last attempt that has left something: one that never began has left nothing."""
        return self.attempt if self.attempt and bucket.has(f"jobs/{id}/{self.attempt}/{PROGRESS}") else self.previous


class BucketJobs:
    """JobFiles in a bucket. `folder`: where nodes unpack a job; empty is their keeper's own choice."""

    def __init__(self, settings: PlaceSettings, folder: str) -> None:
        self._python = shlex.split(settings.python)
        self._bucket, self._folder = Bucket(settings.bucket), folder

    async def hello(self, weights: str) -> Mapping[str, Any]:
        """Check the bucket only: each node compares its rlproxy and its weights before it trains."""
        await _call(self._bucket.check)
        return {"version": own_version(), "problem": None, "identity": None}

    async def receive(self, id: str, archive: Path, weights: str) -> None:
        await _call(lambda: self._receive(id, archive, weights), carries_archive=True)

    def _receive(self, id: str, archive: Path, weights: str) -> None:
        if BucketJob.read(self._bucket, id) is None:
            self._bucket.upload(f"jobs/{id}/{RUN}", archive)
            BucketJob(weights, own_version()).write(self._bucket, id)

    async def attempt(self, id: str, order: RunOrder) -> str:
        attempt = secrets.token_hex(6)
        await _call(lambda: self._begin(id, order, attempt))
        words = [*self._python, "-P", "-m", "trainer.places.bucket_keeper", self._bucket.url, id, attempt]
        folder = ["--folder", self._folder] if self._folder else []
        return shlex.join([*words, *folder, *keeper_arguments(order)[1:]])

    def _begin(self, id: str, order: RunOrder, attempt: str) -> None:
        job = self._job(id)
        identity = weights_identity(weights_of(order.folder))
        previous = job.latest(self._bucket, id)
        replace(job, attempt=attempt, previous=previous, identity=identity, stopped=False).write(self._bucket, id)

    def log(self, id: str) -> Path | None:
        return None

    async def has_result(self, id: str) -> bool:
        return (await self.look(id, 0)).has_result

    async def look(self, id: str, offset: int) -> JobState:
        return await _call(lambda: self._look(id, offset))

    def _look(self, id: str, offset: int) -> JobState:
        job = BucketJob.read(self._bucket, id)
        if job is None or not job.attempt:
            return JobState("absent" if job is None else "stands")
        folder = f"jobs/{id}/{job.attempt}"
        end = self._bucket.read_json(f"{folder}/{ENDED}")  # before the progress, all of which is there then
        lines = self._bucket.read(f"{folder}/{PROGRESS}", offset, MOST_PROGRESS) or b""
        progress = lines[: lines.rfind(b"\n") + 1].decode("utf-8", "replace")
        if end is None:
            return JobState("stands", progress)
        note = str(end.get("problem") or "")
        return JobState("ended", progress, bool(end.get("has_result")), end.get("status"), end.get("exceeded"), note)

    async def stop(self, id: str) -> None:
        await _call(lambda: self._stop(id))

    def _stop(self, id: str) -> None:
        if (job := BucketJob.read(self._bucket, id)) is not None:  # else its attempt stops by itself
            replace(job, stopped=True).write(self._bucket, id)

    async def send(self, id: str, archive: Path) -> None:
        await _call(lambda: self._send(id, archive), carries_archive=True)

    def _send(self, id: str, archive: Path) -> None:
        job, folder = self._job(id), f"jobs/{id}"
        name = RESULT if self._look(id, 0).has_result else STATE
        attempt = job.attempt if name == RESULT else job.latest(self._bucket, id)
        if not self._bucket.download(f"{folder}/{attempt}/{name}", archive):
            archive.write_bytes(b"")  # it has left nothing, and is refused as an archive

    async def remove(self, id: str) -> None:
        await _call(lambda: self._remove(id))

    def _remove(self, id: str) -> None:
        """The record first: a job is whole or not there, also for an attempt that still writes."""
        self._bucket.remove(f"jobs/{id}/{RECORD}")
        self._bucket.remove(f"jobs/{id}")

    def _job(self, id: str) -> BucketJob:
        job = BucketJob.read(self._bucket, id)
        if job is None:
            raise PlaceError(f"{self._bucket.url}/jobs/{id} is not there.")
        return job


async def _call(work: Callable[[], T], *, carries_archive: bool = False) -> T:
    """A bucket that fails may do better later. Raises PlaceUnreachable."""
    try:
        async with asyncio.timeout(None if carries_archive else CALL_S):
            return await asyncio.to_thread(work)
    except BucketError as error:
        raise PlaceUnreachable(str(error)) from None
    except TimeoutError:
        raise PlaceUnreachable(f"the bucket did not answer within {CALL_S:.0f} s.") from None
