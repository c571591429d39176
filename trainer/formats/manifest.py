"""manifest.json of an adapter folder: what is in it, where it came from, and that nothing has changed since.

Owns the manifest's name and the check of its hashes, and that there is nothing else in the folder. A server that is
handed it may prefer a file that nobody checked (adapter_model.bin is a pickle), or follow a link out of it. Free of
torch, so the proxy may verify (through trainer.launch). Not here: writing an adapter (adapter).
"""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from trainer.formats.tensor_file import flaw

MANIFEST = "manifest.json"
MOST = 4 * 2**20  # bytes of a manifest
LONGEST_NAME = 255  # bytes of a file's name, on every file system that is used
KINDS = (".safetensors", ".json", ".md")  # never pickles, never code; PEFT leaves a README.md
FORMAT = 1


class AdapterError(Exception):
    """This adapter folder is not what it says. Names the file."""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path) -> dict[str, Any]:
    """The manifest, after every file was read and its hash compared."""
    path = folder / MANIFEST
    try:
        _require_plain(path)
        if path.stat().st_size > MOST:
            raise AdapterError(f"{path} is over {MOST} bytes.")
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise AdapterError(f"{path} is missing.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise AdapterError(f"{path} is not an adapter manifest of format {FORMAT}.")
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise AdapterError(f"{path} lists no files.")
    sidecars = manifest.get("kept", {})
    if not isinstance(sidecars, dict):
        raise AdapterError(f"{path} is not an adapter manifest of format {FORMAT}.")
    for name in (*files, *sidecars):
        # A manifest never reaches outside its folder, nor names what no file system has.
        if Path(name).name != name or "\\" in name or "\0" in name or not _is_name(name):
            raise AdapterError(f"{path} lists {name!r}, which is not a plain file name.")
        if Path(name).suffix not in KINDS:
            raise AdapterError(f"{path} lists {name!r}: an adapter is safetensors and JSON, nothing else is loaded.")
    for part in sorted(folder.iterdir()):
        if part.name not in (MANIFEST, *files, *sidecars):
            raise AdapterError(f"{part} is not in the manifest; take it away.")
    for name, expected in files.items():
        _check(folder / name, expected)
    for name in sidecars:  # they may be deleted, and who reads them checks their hashes
        if (folder / name).is_symlink() or (folder / name).exists():
            _require_plain(folder / name)
    return manifest


def _is_name(text: str) -> bool:
    try:
        return len(text.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:  # half a character
        return False


def _check(part: Path, expected: object) -> None:
    try:
        _require_plain(part)
        fault = flaw(part) if part.suffix == ".safetensors" else None  # first: a sparse file takes minutes to read
        digest = sha256(part) if fault is None else ""
    except OSError as error:
        raise AdapterError(f"{part} cannot be read: {error.strerror}.") from None
    if fault is not None:
        raise AdapterError(f"{part} is corrupt, and not a sound safetensors file: {fault}.")
    if digest != expected:
        raise AdapterError(f"{part} is corrupt: sha256 {digest[:12]}…, the manifest says {str(expected)[:12]}….")


def _require_plain(part: Path) -> None:
    """A file of this folder, and no link, pipe or device. Raises OSError, AdapterError."""
    if not stat.S_ISREG(part.lstat().st_mode):
        raise AdapterError(f"{part} is not a plain file.")
