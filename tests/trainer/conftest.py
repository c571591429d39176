"""What the trainer's tests share: the small real model, found once a session, and one engine over it."""

from pathlib import Path

import pytest
import torch

from tests.harness import tiny
from tests.trainer.runs import go
from tests.trainer.serving import served
from trainer.formats.weights import resolve

__all__ = ["served"]  # a fixture


@pytest.fixture(scope="session")
def weights() -> Path:
    # Two cores, often shared with another torch: one thread each, or they spin against each other.
    torch.set_num_threads(1)
    return resolve().path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def lines(model):
    return tiny.sample_lines(model)


@pytest.fixture(scope="module")
def first(tmp_path_factory, model, lines):
    """Version 1, far enough from the base that its replies show it."""
    folder = tiny.run_folder(
        tmp_path_factory.mktemp("first") / "run", model, lines, overrides={"learning_rate": 1e-2, "drift_bound": 10.0}
    )
    result, _ = go(folder)
    assert result["status"] == "passed"
    return folder.parent / "out" / "v0001"
