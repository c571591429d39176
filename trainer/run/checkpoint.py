"""The last optimiser step on disk: adapter, last good adapter, optimiser and counters in one file, replaced whole.

Owns the file. One safetensors file with its counters in the header. A rename replaces everything at once, so there is
no moment with half of it. Not here: what to do with it (loop).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trainer.io.run_folder import sync_folder
from trainer.policy.policy import State


@dataclass(frozen=True)
class Checkpoint:
    fingerprint: str  # of everything that decides what a step does, but for `pushed`
    step: int = 0  # optimiser steps done
    seconds: float = 0.0  # spent training, over all processes
    history: list[dict[str, float]] = field(default_factory=list)  # the step events
    rate_share: float = 1.0  # of the preset's rate: less where the first step at it went too far
    adapter: State = field(default_factory=dict)
    good: State = field(default_factory=dict)  # the last adapter whose drift was measured and within the bound
    optimiser: State = field(default_factory=dict)
    pushed: State = field(default_factory=dict)  # the advantages of each lesson (T,), by its place


FOLDER = "checkpoint"  # of a run's folder
TENSORS = ("adapter", "good", "optimiser", "pushed")
CLOSE = 1e-3  # advantages may come of log-probs, which frameworks and machines compute with other last digits


def write(folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir(exist_ok=True)
    tensors = {f"{part}:{name}": array for part in TENSORS for name, array in getattr(checkpoint, part).items()}
    counters = {
        name: value
        for name, value in asdict(replace(checkpoint, adapter={}, good={}, optimiser={}, pushed={})).items()
        if name not in TENSORS
    }
    temporary = folder / ".state.tmp"
    save_file(tensors, temporary, metadata={"counters": json.dumps(counters)})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, folder / "state.safetensors")
    sync_folder(folder)


def read(folder: Path, fingerprint: str, pushed: State) -> Checkpoint | str | None:
    """The checkpoint; a sentence on why the one there cannot be used; None when there is none."""
    path = folder / "state.safetensors"
    if not path.exists():
        return None
    parts: dict[str, Any] = {part: {} for part in TENSORS}
    try:
        with safe_open(path, framework="numpy") as file:
            counters = json.loads(file.metadata()["counters"])
            for key in file.keys():  # noqa: SIM118, it is no dict
                part, name = key.split(":", 1)
                parts[part][name] = file.get_tensor(key)
        checkpoint = Checkpoint(**counters, **parts)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        return f"the checkpoint cannot be read ({error}); starting over"
    if checkpoint.fingerprint != fingerprint or not _are_close(checkpoint.pushed, pushed):
        return "the checkpoint is of other samples or settings; starting over"
    return checkpoint


def _are_close(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(
        array.shape == second[name].shape and np.allclose(array, second[name], rtol=0, atol=CLOSE)
        for name, array in first.items()
    )
