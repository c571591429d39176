"""The optimiser's state that goes with a version: a run of few steps should not spend them on warming up.

Owns optimiser.safetensors in an adapter folder. It is worth having, not needed: a version without it serves and is
trained on all the same, so it may be deleted, and one that does not fit is left alone with the reason. Not here: the
checkpoint of a run under way (checkpoint).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from trainer.manifest import MANIFEST, sha256
from trainer.policy import State

FILE = "optimiser.safetensors"


def write(folder: Path, state: Mapping[str, NDArray[Any]]) -> None:
    if state:
        save_file(dict(state), folder / FILE)


def read(adapter: Path, adapter_state: Mapping[str, NDArray[Any]]) -> tuple[State, str]:
    """The state kept with this adapter, and a word on it; empty where there is none that fits `adapter_state`.

    Keys are `<what>/<name of the tensor>`; what is kept per tensor has its shape, or is one number.
    """
    path = adapter / FILE
    if not path.exists():
        return {}, "the parent has none"
    try:
        expected = json.loads((adapter / MANIFEST).read_bytes()).get("kept", {}).get(FILE)
        if sha256(path) != expected:
            return {}, "the parent's is not the one that was written with it"
        state: State = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        return {}, f"the parent's cannot be read: {error}"
    for key, value in state.items():
        name = key.partition("/")[2]
        if name not in adapter_state or value.size not in (1, adapter_state[name].size):
            return {}, "the parent's is of another framework or shape"
    return state, "the parent's, kept with it"
