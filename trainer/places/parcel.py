"""The proxy's end of a run elsewhere: which files go, under which id, and what of a result is taken.

Owns the id of a job, made of what it is to train, so that the same run never makes two. A result counts only once all
of it has arrived with its hashes: `result.json` is written last. Not here: how an archive is made (shipment), the other
end (depot).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from trainer.formats import manifest
from trainer.formats.manifest import AdapterError, sha256
from trainer.io.run_folder import OWN_LOSS, PICTURES, SAMPLES, sync_folder, write_atomic
from trainer.places import shipment
from trainer.places.shipment import ShipmentError

RECORD: Final = "elsewhere.json"  # in a run folder: the job that trains it elsewhere
RESULT_PART, ARCHIVE = ".result.part", ".archive.tar"  # what a kill may leave, and nobody reads
STATE: Final = "checkpoint/state.safetensors"
SIDE_FILES: Final = ("answer_pairs.jsonl", "retry.json", "trainer.log")  # files that a run leaves beside its result
READABLE: Final = 0o755, 0o644  # an adapter is read by the model's server


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Where a run is, on disk before it is submitted."""

    place: str  # as the setting names it
    id: str
    progress_from: int  # bytes of progress.jsonl that earlier attempts have written here
    bucket: str = ""  # that its files went through

    @classmethod
    def read(cls, folder: Path, name: str = RECORD) -> Self | None:
        try:
            content = json.loads((folder / name).read_bytes())
            bucket = str(content.get("bucket", ""))
            return cls(str(content["place"]), str(content["id"]), int(content["progress_from"]), bucket)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):  # written whole, so somebody else's
            return None

    def write(self, folder: Path) -> None:
        write_atomic(folder / RECORD, json.dumps(asdict(self)).encode())


def weights_of(folder: Path) -> str:
    """The weights that a run trains, as on this machine. Raises OSError, ValueError, KeyError."""
    return str(json.loads((folder / "run.json").read_bytes())["weights"])


def progress_size(folder: Path) -> int:
    """Bytes of progress.jsonl."""
    path = folder / "progress.jsonl"
    return path.stat().st_size if path.is_file() else 0


def files_of(folder: Path) -> dict[str, Path]:
    """The files that a run trains on, by their names in the archive. Raises OSError, ValueError."""
    order = json.loads((folder / "run.json").read_bytes())
    names = ("run.json", SAMPLES, PICTURES, "calibration.jsonl", OWN_LOSS)
    files = {name: folder / name for name in names if (folder / name).is_file()}
    for version, path in sorted(order.get("adapters", {}).items()):
        files |= {f"adapters/{version}/{part.name}": part for part in sorted(Path(path).iterdir()) if part.is_file()}
    return files


def job_id(folder: Path, files: dict[str, Path]) -> str:
    """The same for the same run, and another one for anything else. Blocking: reads each file."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name} {sha256(path)}\n".encode())
    return f"{folder.name}-{digest.hexdigest()[:20]}"


def pack(folder: Path, files: dict[str, Path]) -> Path:
    """The archive, in a file of the run folder; with the checkpoint of an earlier attempt here, if any."""
    checkpoint = {STATE: folder / STATE} if (folder / STATE).is_file() else {}
    archive = folder / ARCHIVE
    with os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
        shipment.pack(sink, files | checkpoint)
    return archive


def take_result(folder: Path, archive: Path) -> None:
    """Put a result where the run was to leave it, `result.json` last. Blocking.

    Raises ShipmentError, AdapterError, OSError; then nothing counts, and it can be fetched again.
    """
    part = folder / RESULT_PART
    _unpack(archive, part)
    try:
        result = json.loads((part / "result.json").read_bytes())
        order = json.loads((folder / "run.json").read_bytes())
        status, out = result["status"], Path(order["out"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ShipmentError("the archive holds no result.") from None
    if status == "passed":
        _take_adapter(part / "adapter", out, order)
        result["adapter"] = str(out)
    elif result.get("adapter"):
        shipment.clear(folder / "rejected")
        if (part / "rejected").is_dir():
            (part / "rejected").rename(folder / "rejected")
        result["adapter"] = str(folder / "rejected")
    for name in SIDE_FILES:
        if (part / name).is_file():
            (part / name).replace(folder / name)
    if (part / "tensorboard").is_dir() and order.get("tensorboard"):
        shutil.copytree(part / "tensorboard", order["tensorboard"], dirs_exist_ok=True)
    sync_folder(folder)
    write_atomic(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    settle(folder)


def take_checkpoint(folder: Path, archive: Path) -> None:
    """The last step of a run that was stopped elsewhere, for an attempt somewhere else. Blocking; raises as above."""
    part = folder / RESULT_PART
    _unpack(archive, part)
    if (part / STATE).is_file():
        (folder / STATE).parent.mkdir(exist_ok=True)
        (part / STATE).replace(folder / STATE)
    settle(folder)


def note(folder: Path, text: str) -> None:
    """Add a place's own words on an attempt that left no result to the run's log."""
    with (folder / "trainer.log").open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")


def settle(folder: Path) -> None:
    """Remove what a kill has left of archives. Blocking."""
    for name in (RESULT_PART, ARCHIVE, f"{ARCHIVE}.cut"):
        shipment.clear(folder / name)


def _unpack(archive: Path, part: Path) -> None:
    shipment.clear(part)
    with archive.open("rb") as source:
        shipment.unpack(source, part)


def _take_adapter(adapter: Path, out: Path, order: dict[str, Any]) -> None:
    """An `out` that is there is of this run, or nothing is taken: a version is never replaced."""
    if out.exists():
        existing = manifest.verify(out)
        if existing.get("run") != order["run"] or existing.get("files") != manifest.verify(adapter).get("files"):
            raise AdapterError(f"{out} already holds the adapter of run {existing.get('run')}.")
        return
    manifest.verify(adapter)
    temporary = out.with_name(f".{out.name}.tmp")
    shipment.clear(temporary)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(adapter, temporary)  # another disk, maybe
    place_adapter(temporary, out)


def place_adapter(folder: Path, out: Path) -> None:
    """Move an adapter that was verified to its place, whole and readable."""
    folder_mode, file_mode = READABLE
    folder.chmod(folder_mode)
    for path in folder.iterdir():
        path.chmod(file_mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
    folder.rename(out)
    sync_folder(out.parent)
