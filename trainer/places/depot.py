"""The other end: a folder of jobs on the machine, or the shared disk, where they train.

Owns what is in such a folder. A job is there when its folder was unpacked whole; half of one is nothing. Not here: who
runs a job (keeper), how the proxy reaches the depot (ssh, slurm).

    ROOT/ID/        run.json with the paths of this machine, samples, adapters; what the trainer adds
    ROOT/.ID.part/  while a job arrives
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from trainer.child_process import python_environment
from trainer.formats.weights import WeightsError, local, out_of_reach
from trainer.io.run_folder import write_atomic
from trainer.places import shipment
from trainer.places.job import RunOrder
from trainer.places.parcel import STATE
from trainer.places.shipment import ShipmentError

State = Literal["absent", "stands", "under way", "ended"]

HOLD, STOP, ENDED, LOG = "keeper.lock", "stop", "ended.json", "trainer.log"
MOST_PROGRESS: Final = 1 << 20  # bytes of progress told at once
LOOK_S: Final = 0.25  # between two looks for news
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,100}")


class DepotError(Exception):
    """One sentence: what the place cannot do."""


@dataclass(frozen=True, slots=True)
class JobState:
    """`stands`: it is there, and nothing trains it: not yet, or what did was killed."""

    state: State
    progress: str = ""  # what the trainer has added to progress.jsonl
    has_result: bool = False
    status: int | None = None  # how the last attempt ended, as Job.wait
    exceeded: str | None = None  # the limit that it was killed for
    note: str = ""  # a sentence of the place's own

    @property
    def is_over(self) -> bool:
        return self.state in ("absent", "stands", "ended")


class Depot:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, id: str) -> Path:
        if not _ID.fullmatch(id):
            raise DepotError(f"{id!r} is not the id of a job.")
        return self.root / id

    def receive(self, id: str, source: IO[bytes], weights: str) -> None:
        """The same job once more changes nothing. `weights`: here. Raises ShipmentError, OSError."""
        folder, part = self.folder(id), self.root / f".{id}.part"
        if shipment.is_whole(folder):
            return
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        shipment.clear(part)
        shipment.unpack(source, part)
        _localise(part, folder, weights)
        try:
            part.rename(folder)
        except OSError:
            if not shipment.is_whole(folder):  # else another submission of it was quicker
                raise
            shipment.clear(part)

    def start(self, order: RunOrder) -> bool:
        """Start a keeper that outlives this process, unless one is at work. Tells whether it did."""
        folder = order.folder
        if not shipment.is_whole(folder):
            raise DepotError(f"{folder} is not there.")
        with (folder / HOLD).open("w") as hold:
            if not take(hold) or (folder / "result.json").exists():
                return False
            self.renew(folder)
            command = [sys.executable, "-P", "-m", "trainer.places.keeper", *keeper_arguments(order)]
            with (folder / LOG).open("ab") as log:
                process = subprocess.Popen(
                    [*command, "--hold", str(hold.fileno())],
                    stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/", env=python_environment(1),
                    pass_fds=[hold.fileno()], start_new_session=True,
                )  # fmt: skip
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(order.key.hex().encode() + b"\n" if order.key else b"")
            threading.Thread(target=process.wait, name="reap-keeper", daemon=True).start()
        return True

    def renew(self, folder: Path) -> None:
        """Before another attempt: the end of the last one counts no more."""
        for name in (STOP, ENDED):
            (folder / name).unlink(missing_ok=True)

    def look(self, id: str, offset: int, wait_s: float = 0.0) -> JobState:
        """Blocking: returns at once where there is news, else after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            state = self._look(self.folder(id), offset)
            if state.progress or state.is_over or time.monotonic() >= deadline:
                return state
            time.sleep(LOOK_S)

    def _look(self, folder: Path, offset: int) -> JobState:
        if not shipment.is_whole(folder):
            return JobState("absent")
        is_at_work = is_held(folder / HOLD)  # before the files: what it wrote at its end is there then
        end = _json(folder / ENDED)
        has_result = (folder / "result.json").is_file()
        state: State = "under way" if is_at_work else "ended" if has_result or end else "stands"
        return JobState(
            state, progress_after(folder, offset), has_result and not is_at_work, end.get("status"), end.get("exceeded")
        )

    def stop(self, id: str) -> None:
        folder = self.folder(id)
        if shipment.is_whole(folder):
            (folder / STOP).touch()

    def send(self, id: str, sink: IO[bytes]) -> None:
        """Pack what a run has left: its result and adapter, or the checkpoint of one that was stopped."""
        folder = self.folder(id)
        if not shipment.is_whole(folder):
            raise DepotError(f"{folder} is not there.")
        names = [name for name in ("result.json", "answer_pairs.jsonl", "retry.json", LOG) if (folder / name).is_file()]
        names += [] if "result.json" in names else [STATE] if (folder / STATE).is_file() else []
        files = {name: folder / name for name in names}
        for part in ("adapter", "rejected", "tensorboard"):
            if "result.json" in names and (folder / part).is_dir():
                files |= {f"{part}/{path.name}": path for path in sorted((folder / part).iterdir()) if path.is_file()}
        shipment.pack(sink, files)

    def remove(self, id: str) -> None:
        folder = self.folder(id)
        if not folder.exists():
            return
        if is_held(folder / HOLD):
            raise DepotError(f"{folder} is still at work.")
        removed = self.root / f".{id}.gone"
        shipment.clear(removed)
        folder.rename(removed)  # a job is whole or not there, also for whoever is killed now
        shutil.rmtree(removed)


def keeper_arguments(order: RunOrder) -> list[str]:
    arguments = [str(order.folder), "--threads", str(order.threads), "--nice", str(order.nice)]
    arguments += ["--max-memory-gb", str(order.max_memory_gb)]
    return [*arguments, *(["--key-on-stdin"] if order.key else [])]


def progress_after(folder: Path, offset: int) -> str:
    """Read the whole lines of progress.jsonl that begin at this byte or after it."""
    try:
        with (folder / "progress.jsonl").open("rb") as file:
            file.seek(offset)
            text = file.read(MOST_PROGRESS)
    except FileNotFoundError:
        return ""
    return text[: text.rfind(b"\n") + 1].decode("utf-8", "replace")


def weights_problem(weights: str) -> str | None:
    """Why these weights cannot train on this machine; None where they are here, or can be fetched."""
    try:
        return None if local(weights) is not None else out_of_reach(weights)
    except WeightsError as error:
        return str(error)


def weights_identity(weights: str) -> str | None:
    """A hash of the model's configuration and tokenizer, and of the names and sizes of its weights; None where they are
    not on this machine."""
    folder = local(weights)
    if folder is None:
        return None
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"")
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _localise(part: Path, folder: Path, weights: str) -> None:
    """Rewrite run.json for this machine."""
    try:
        order: dict[str, Any] = json.loads((part / "run.json").read_bytes())
        adapters = {version: str(folder / "adapters" / str(int(version))) for version in order.get("adapters", {})}
    except (OSError, ValueError, AttributeError, TypeError):
        raise ShipmentError("the archive is not of a run.") from None
    order |= {"weights": weights, "out": str(folder / "adapter"), "adapters": adapters}
    order["tensorboard"] = str(folder / "tensorboard") if order.get("tensorboard") else None
    write_atomic(part / "run.json", json.dumps(order).encode())


def take(hold: IO[str]) -> bool:
    """Hold a job; tells whether nobody else does."""
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """The kernel lets go of a lock whichever way its holder ends, with the machine too."""
    try:
        with path.open("r") as hold:
            fcntl.flock(hold, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_end(folder: Path, status: int, exceeded: str | None) -> None:
    """The keeper's last word on an attempt."""
    write_atomic(folder / ENDED, json.dumps({"status": status, "exceeded": exceeded, "pid": os.getpid()}).encode())
