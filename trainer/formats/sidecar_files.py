"""Files of a version that are useful and not needed: the optimiser's state, and the labels of its critic.

Owns these files in an adapter folder. A version without them serves and is trained on all the same, so they may be
deleted. One that is not as it was written is left alone, with the reason. Not here: what is in them (optimizer_state,
critic).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trainer.formats.manifest import MANIFEST, sha256

OPTIMISER = "optimiser.safetensors"
CRITIC = "critic.safetensors"
FILES = (OPTIMISER, CRITIC)

Arrays = dict[str, NDArray[Any]]


def write(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    if arrays:
        save_file(dict(arrays), folder / name)


def read(adapter: Path, name: str) -> tuple[Arrays, str]:
    """The files kept with this adapter, and a word on them; empty where there is none as it was written."""
    path = adapter / name
    if not path.exists():
        return {}, "the parent has none"
    try:
        expected = json.loads((adapter / MANIFEST).read_bytes()).get("kept", {}).get(name)
        if sha256(path) != expected:
            return {}, "the parent's is not the one that was written with it"
        return load_file(path), "the parent's, kept with it"
    except (OSError, ValueError, SafetensorError) as error:
        return {}, f"the parent's cannot be read: {error}"
