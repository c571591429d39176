"""What the trainer's tests share: the small real model, found once a session, and one engine over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scripts.harness.lora import random_adapter
from tests.harness import tiny
from tests.trainer.runs import go
from tests.trainer.serving import Served
from trainer.formats.weights import Weights, resolve
from trainer.serve.__main__ import load_model
from trainer.serve.batched_lora import read_adapter
from trainer.serve.engine import Engine


@pytest.fixture(scope="session")
def weights() -> Path:
    # Two cores, often shared with another torch: one thread each, or they spin against each other.
    torch.set_num_threads(1)
    return resolve().path


@pytest.fixture(scope="session")
def served(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("adapters")
    one = random_adapter(weights, folder / "one", seed=1)
    # Another rank and scaling, and not on every layer.
    two = random_adapter(weights, folder / "two", seed=2, r=4, use_rslora=True, target_modules=["q_proj", "down_proj"])
    model, tokenizer = load_model(Weights(weights, "a test"), threads=1)
    engine = Engine(model, tokenizer)
    yield Served(engine, weights, (read_adapter("one", one, model), read_adapter("two", two, model)))
    engine.close()


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
