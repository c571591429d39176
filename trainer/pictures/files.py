"""Pictures of a run folder: bytes by their sha256.

Owns reading PICTURES. The proxy has decoded each in a process of its own with bounds before it wrote the folder. Not
here: who writes the file (proxy), pixels, tokens (processor).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from trainer.io.encrypted_files import Seal
from trainer.io.run_folder import PICTURES, RunError, read_lines


def read(folder: Path, seal: Seal) -> dict[str, bytes]:
    """Bytes of a run's pictures by the sha256 of each, in hex. Raises RunError where one is not what its hash says."""
    pictures: dict[str, bytes] = {}
    for number, line in read_lines(folder / PICTURES, seal):
        try:
            name, data = str((line or {})["sha256"]), base64.b64decode((line or {})["data"], validate=True)
        except (KeyError, TypeError, binascii.Error):
            raise RunError(f"line {number} of {folder / PICTURES} is not a picture.") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise RunError(f"line {number} of {folder / PICTURES} holds another picture than its hash says.")
        pictures[name] = data
    return pictures
