"""The trainer takes each kind of model: its layers for llama.cpp wear a LoRA, and log-probs come of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from config import presets
from scripts.models import tiny
from trainer.formats.weights import cache_folder
from trainer.policy.packing import Tokens, pack
from trainer.policy.policies import open_policy

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

SEQUENCES = [Tokens((5, 6, 7, 8, 9), (11, 12, 13), 1.0), Tokens((5, 6, 7, 8), (21, 22), 1.0)]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_policy_of_each_kind(kind: str, tmp_path: Path) -> None:
    weights = tiny.make(kind, tmp_path / "model", tokenizer=cache_folder() / "models" / "SmolLM2-135M-Instruct")
    policy = open_policy(
        "torch", weights, presets.resolve("balanced", {}), parent=None, threads=1, seed=1, server_format="gguf"
    )
    assert {name: value for name, value, _ in policy.choices}["layers"]
    log_probs = policy.log_probs(pack(SEQUENCES)).plain
    assert log_probs.shape == (5,) and np.isfinite(log_probs).all() and (log_probs < 0).all()
