"""How files of a run travel: a tar archive whose last member is a manifest with the sha256 of each file.

Owns packing, and unpacking into a folder that is whole or refused. Nothing in an archive is trusted: only plain files
under plain names come out of one, for their owner only. Not here: which files travel (depot, parcel).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from trainer.formats.manifest import sha256
from trainer.io.run_folder import sync_folder, write_atomic

MANIFEST: Final = "shipment.json"
FORMAT: Final = 1
MOST: Final = 4 * 2**20  # bytes of a manifest
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*){0,3}")


class ShipmentError(Exception):
    """An archive is not whole, or not what its manifest says. One sentence."""


def pack(sink: IO[bytes], files: Mapping[str, Path]) -> None:
    """Write these files, by their names in the archive, and the manifest last. Raises OSError."""
    with tarfile.open(fileobj=sink, mode="w|") as archive:
        hashes = {}
        for name, path in files.items():
            with path.open("rb") as file:
                member = tarfile.TarInfo(name)
                member.size = os.fstat(file.fileno()).st_size
                archive.addfile(member, file)
            hashes[name] = sha256(path)
        manifest = json.dumps({"format": FORMAT, "files": hashes}).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.size = len(manifest)
        archive.addfile(member, io.BytesIO(manifest))


def unpack(source: IO[bytes], folder: Path) -> dict[str, str]:
    """Fill an empty `folder`; its manifest is written last, once each hash was compared. Returns the hashes by name.

    Raises ShipmentError, OSError; what is in the folder then counts for nothing.
    """
    folder.mkdir(mode=0o700, parents=True)
    manifest, arrived = b"", {}
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                if file is None or not _NAME.fullmatch(member.name) or manifest:
                    raise ShipmentError(f"the archive holds {member.name!r}, which does not belong there.")
                if member.name == MANIFEST:
                    manifest = file.read(MOST)
                else:
                    arrived[member.name] = _write(folder / member.name, file)
    except (tarfile.TarError, EOFError) as error:
        raise ShipmentError(f"the archive is cut or changed ({error}).") from None
    hashes = _hashes(manifest)
    if hashes != arrived:
        names = sorted(name for name in {*hashes, *arrived} if hashes.get(name) != arrived.get(name))
        raise ShipmentError(f"{', '.join(names[:3])} did not arrive as it was sent.")
    write_atomic(folder / MANIFEST, manifest)
    return hashes


def is_whole(folder: Path) -> bool:
    """Tell whether this folder was unpacked to its end."""
    return (folder / MANIFEST).is_file()


def clear(path: Path) -> None:
    """Remove what is there under this name, if anything."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _hashes(manifest: bytes) -> dict[str, str]:
    try:
        content: Any = json.loads(manifest)
        if content["format"] != FORMAT:
            raise ShipmentError(f"its manifest has format {content['format']!r}, not {FORMAT}.")
        return {str(name): str(digest) for name, digest in content["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ShipmentError("the archive ends without its manifest.") from None


def _write(path: Path, file: IO[bytes]) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    sync_folder(path.parent)
    return digest.hexdigest()
