"""manifest.json of an adapter folder: what is in it, where it came from, and that nothing has changed since.

Owns the manifest's name and the check of its hashes. Free of torch, so the proxy may verify (through trainer.launch).
Not here: writing an adapter (adapter).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
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
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise AdapterError(f"{path} is missing.") from None
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise AdapterError(f"{path} is not an adapter manifest of format {FORMAT}.")
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise AdapterError(f"{path} lists no files.")
    for name, expected in files.items():
        part = folder / name
        if Path(name).name != name:  # a manifest never reaches outside its folder
            raise AdapterError(f"{path} lists {name!r}, which is not a plain file name.")
        try:
            found = sha256(part)
        except OSError as error:
            raise AdapterError(f"{part} cannot be read: {error.strerror}.") from None
        if found != expected:
            raise AdapterError(f"{part} is corrupt: sha256 {found[:12]}…, the manifest says {str(expected)[:12]}….")
    return manifest
