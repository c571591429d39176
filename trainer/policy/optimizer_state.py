"""The optimiser's state that goes with a version: a run of few steps should not spend them on warming up.

Owns whether a state fits an adapter. Not here: the file (sidecar_files), the checkpoint of a run under way
(checkpoint).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainer.formats import sidecar_files
from trainer.policy.policy import State


def read(adapter: Path, adapter_state: Mapping[str, NDArray[Any]]) -> tuple[State, str]:
    """The state kept with this adapter, and a word on it; empty where there is none that fits `adapter_state`.

    Keys are `<what>/<name of the tensor>`; what is kept per tensor has its shape, or is one number.
    """
    state, note = sidecar_files.read(adapter, sidecar_files.OPTIMISER)
    for key, value in state.items():
        name = key.partition("/")[2]
        if name not in adapter_state or value.size not in (1, adapter_state[name].size):
            return {}, "the parent's is of another framework or shape"
    return state, note
