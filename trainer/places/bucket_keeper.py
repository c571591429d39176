"""`python -m trainer.places.bucket_keeper URL ID ATTEMPT`: one attempt of a job, on a node that shares no disk.

Owns the way of its files: the run folder comes out of the bucket, progress and checkpoints go there while it trains,
and `ended.json` last. An attempt that counts no more stops and writes nothing. Not here: the attempt itself (keeper),
what a job's objects are (bucket_jobs).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from trainer.child_process import last_line
from trainer.places import bucket_jobs, keeper, shipment
from trainer.places.bucket import Bucket, BucketError
from trainer.places.bucket_jobs import BucketJob
from trainer.places.depot import ENDED, HOLD, LOG, STOP, Depot, DepotError, is_held, take
from trainer.places.host import describe
from trainer.places.job import RunOrder
from trainer.places.parcel import STATE
from trainer.places.place import own_version
from trainer.places.shipment import ShipmentError

FOLDER: Final = "~/.rlproxy-jobs"
LOOK_S: Final = 1.0  # between two looks at the job's record
UPLOAD_SHARE: Final = 0.1  # of the time, at most, that checkpoints are on their way
PAUSE_S, PATIENCE_S = 5.0, 3600.0  # for a bucket that does not take the end of an attempt
LEFT_S: Final = 3600.0  # after which a folder that nobody holds was left by a kill
LEFTOVER: Final = re.compile(r".*-[0-9a-f]{20}-[0-9a-f]{12}(\.part|\.tar)?")  # an attempt's, and no other depot's job
STOPPED: Final = 143  # how a trainer ends that was told to
EXIT_OVERTAKEN: Final = 76
T = TypeVar("T")


class AttemptOvertaken(Exception):
    """Another attempt counts, or the job is gone."""


class AttemptFailed(Exception):
    """One sentence: why this node cannot train the job."""


class BucketAttempt:
    def __init__(self, bucket: Bucket, id: str, name: str, depot: Depot) -> None:
        self._bucket, self._depot = bucket, depot
        self._id, self._name = id, name
        self.folder = depot.folder(f"{id}-{name}")
        self._objects = f"jobs/{id}/{name}"
        self._sent_bytes, self._sent_state, self._next_state = -1, 0, 0.0

    def job(self) -> BucketJob:
        """Its record. Raises AttemptOvertaken, BucketError."""
        job = BucketJob.read(self._bucket, self._id)
        if job is None or job.attempt != self._name:
            raise AttemptOvertaken
        return job

    def arrive(self) -> None:
        """Unpack the run, and what the attempt before has left. Raises AttemptOvertaken, AttemptFailed, BucketError,
        OSError."""
        job = self.job()
        if job.version != own_version():
            raise AttemptFailed(f"this node has rlproxy {own_version()}, and the run is of {job.version}")
        place = describe(job.weights)
        if place["problem"]:
            raise AttemptFailed(str(place["problem"]))
        if job.identity and place["identity"] and job.identity != place["identity"]:
            raise AttemptFailed(f"the weights on this node ({job.weights}) are not those of the proxy's machine")
        archive = self._depot.root / f".{self.folder.name}.tar"
        self._depot.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._receive(archive, job.weights)
            if job.previous:
                self._go_on_from(f"jobs/{self._id}/{job.previous}", archive)
        finally:
            shipment.clear(archive)

    def _receive(self, archive: Path, weights: str) -> None:
        """One that is broken is taken away, so that the proxy sends it again."""
        for is_last in (False, False, True):
            try:
                if self._bucket.download(f"jobs/{self._id}/{bucket_jobs.RUN}", archive):
                    with archive.open("rb") as source:
                        self._depot.receive(self.folder.name, source, weights)
                    return
                problem = "is not there"
            except ShipmentError as error:
                problem = str(error)
            if is_last:
                self._bucket.remove(f"jobs/{self._id}/{bucket_jobs.RECORD}")
                raise AttemptFailed(f"the run folder in the bucket has to be sent again: {problem}")

    def _go_on_from(self, objects: str, archive: Path) -> None:
        self._bucket.download(f"{objects}/{bucket_jobs.PROGRESS}", self.folder / "progress.jsonl")
        part = self.folder / ".before"
        if not self._bucket.download(f"{objects}/{bucket_jobs.STATE}", archive):
            return
        try:
            with archive.open("rb") as source:
                shipment.unpack(source, part)
            (self.folder / STATE).parent.mkdir(exist_ok=True)
            (part / STATE).replace(self.folder / STATE)
        except (ShipmentError, OSError) as error:
            print(f"its checkpoint is not used, and it begins anew: {error}", file=sys.stderr)
        finally:
            shipment.clear(part)

    def exchange(self) -> None:
        """Look whether it is to stop, and send what is new. Raises AttemptOvertaken, BucketError, OSError."""
        if self.job().stopped:
            self._depot.stop(self.folder.name)
        state = self.folder / STATE
        version = state.stat().st_mtime_ns if state.is_file() else 0
        if version != self._sent_state and time.monotonic() >= self._next_state:
            began = time.monotonic()
            self._send_state(state)
            took = time.monotonic() - began
            self._sent_state, self._next_state = version, began + took / UPLOAD_SHARE
        self._send_progress()

    def _send_state(self, state: Path) -> None:
        """A link holds this checkpoint while the trainer writes the next one in its place."""
        linked, archive = self.folder / ".state", self.folder / ".state.tar"
        shipment.clear(linked)
        os.link(state, linked)
        with archive.open("wb") as sink:
            shipment.pack(sink, {STATE: linked})
        self._bucket.upload_unchecked(f"{self._objects}/{bucket_jobs.STATE}", archive)

    def _send_progress(self) -> None:
        path = self.folder / "progress.jsonl"
        lines = path.read_bytes() if path.is_file() else b""
        content = lines[: lines.rfind(b"\n") + 1]  # whole ones: the next attempt writes behind them
        if len(content) != self._sent_bytes:  # also an empty one, first: it says that the attempt has begun
            self._bucket.write(f"{self._objects}/{bucket_jobs.PROGRESS}", content)
            self._sent_bytes = len(content)

    def finish(self) -> None:
        """Send the result, or the last checkpoint. Raises AttemptOvertaken, BucketError, OSError."""
        self.job()
        self._send_progress()
        has_result = (self.folder / "result.json").is_file()
        archive = self.folder / ".end.tar"
        with archive.open("wb") as sink:
            self._depot.send(self.folder.name, sink)
        name = bucket_jobs.RESULT if has_result else bucket_jobs.STATE
        if has_result or (self.folder / STATE).is_file():
            self._bucket.upload(f"{self._objects}/{name}", archive)
        end = json.loads((self.folder / ENDED).read_bytes())
        problem = "" if has_result or end["status"] == STOPPED else last_line(self.folder / LOG)
        self._end({"status": end["status"], "exceeded": end["exceeded"], "has_result": has_result, "problem": problem})

    def fail(self, problem: str) -> None:
        """The attempt did not begin. Raises AttemptOvertaken, BucketError."""
        self.job()
        self._end({"status": -1, "problem": problem})

    def _end(self, members: dict[str, Any]) -> None:
        self._bucket.write(f"{self._objects}/{bucket_jobs.ENDED}", json.dumps(members).encode())


async def carry(attempt: BucketAttempt, order: RunOrder) -> int:
    """Train, and send news while it does. Returns how the trainer ended, as Job.wait."""
    ended = asyncio.Event()
    sending = asyncio.create_task(_send(attempt, ended))
    status = await keeper.keep(order)
    ended.set()
    await sending  # to its end: old news must not arrive after new ones
    await asyncio.to_thread(insist, attempt.finish)
    return status


async def _send(attempt: BucketAttempt, ended: asyncio.Event) -> None:
    while not ended.is_set():
        try:
            await asyncio.to_thread(attempt.exchange)
        except AttemptOvertaken:
            (attempt.folder / STOP).touch()
        except (BucketError, OSError) as error:  # it trains on, and the next look may go better
            print(error, file=sys.stderr, flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await ended.wait()


def insist(work: Callable[[], T]) -> T:
    """Try again while the bucket fails. Raises AttemptOvertaken, and the last error when PATIENCE_S are over."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except (BucketError, OSError) as error:
            if time.monotonic() >= deadline:
                raise
            print(error, file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)


def clear_leftovers(root: Path) -> None:
    """Remove what killed attempts have left on this node: people's texts."""
    for path in root.iterdir() if root.is_dir() else ():
        is_at_work = path.is_dir() and is_held(path / HOLD)
        if LEFTOVER.fullmatch(path.name) and not is_at_work and time.time() - path.lstat().st_mtime > LEFT_S:
            shipment.clear(path)


def train(attempt: BucketAttempt, threads: int, nice: int, max_memory_gb: float) -> int:
    """Returns an exit status. Raises AttemptOvertaken, BucketError, OSError."""
    try:
        insist(attempt.arrive)
    except (AttemptFailed, DepotError) as error:
        problem = str(error)
        print(problem, file=sys.stderr)
        insist(lambda: attempt.fail(problem))
        return 1
    with (attempt.folder / HOLD).open("w") as hold:
        take(hold)
        order = RunOrder(attempt.folder, threads, nice, max_memory_gb)
        return 0 if asyncio.run(carry(attempt, order)) == 0 else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="trainer.places.bucket_keeper", description="One attempt of a run elsewhere.")
    for name in ("url", "id", "attempt"):
        parser.add_argument(name)
    parser.add_argument("--folder", type=Path, default=Path(FOLDER))
    keeper.add_limits(parser)
    options = parser.parse_args(arguments)
    os.umask(0o077)
    depot = Depot(options.folder.expanduser().absolute())
    attempt = BucketAttempt(Bucket(options.url), options.id, options.attempt, depot)
    try:
        clear_leftovers(depot.root)
        return train(attempt, options.threads, options.nice, options.max_memory_gb)
    except AttemptOvertaken:
        print("another attempt of this job counts, or the job is gone", file=sys.stderr)
        return EXIT_OVERTAKEN
    except (BucketError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(attempt.folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
