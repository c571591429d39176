"""What the trainer's tests share: the small real model, found once a session, and one engine over it."""

from pathlib import Path

import pytest
import torch

from tests.trainer.serving import served
from trainer.formats.weights import resolve

__all__ = ["served"]  # a fixture


@pytest.fixture(scope="session")
def weights() -> Path:
    # Two cores, often shared with another torch: one thread each, or they spin against each other.
    torch.set_num_threads(1)
    return resolve().path
