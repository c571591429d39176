"""A checkpoint is of one run: its settings to the letter, its advantages to the last digits that machines agree on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.run import checkpoint
from trainer.run.checkpoint import Checkpoint

PUSHED = {"0": np.array([0.5, -0.25]), "1": np.array([1.0])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"a": np.ones(3, dtype=np.float32)}
    at = Checkpoint("f", 3, 1.5, [{"loss": 0.1}], adapter=state, good=state, optimiser=state, pushed=PUSHED)
    checkpoint.write(tmp_path, at)
    return tmp_path


def test_it_is_read_whole(folder: Path) -> None:
    found = checkpoint.read(folder, "f", PUSHED)
    assert isinstance(found, Checkpoint) and (found.step, found.seconds, found.history) == (3, 1.5, [{"loss": 0.1}])
    assert np.array_equal(found.adapter["a"], np.ones(3)) and np.array_equal(found.pushed["0"], PUSHED["0"])


def test_another_framework_computes_other_last_digits(folder: Path) -> None:
    near = {name: values + 1e-5 for name, values in PUSHED.items()}
    assert isinstance(checkpoint.read(folder, "f", near), Checkpoint)


@pytest.mark.parametrize(
    ("fingerprint", "pushed"),
    [
        ("g", PUSHED),
        ("f", {**PUSHED, "0": np.array([0.5, 0.25])}),
        ("f", {**PUSHED, "1": np.array([1.0, 1.0])}),
        ("f", {"0": PUSHED["0"]}),
    ],
)
def test_of_other_samples_or_settings_it_is_not_used(
    folder: Path, fingerprint: str, pushed: dict[str, np.ndarray]
) -> None:
    assert "other samples or settings" in str(checkpoint.read(folder, fingerprint, pushed))
