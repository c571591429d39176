"""The trainer takes each kind of model: a whole run on it ends as a result, and the adapter converts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from config import presets
from scripts.models import tiny
from tests.harness.tiny import run_folder, sample_lines, tokenizer
from tests.trainer.runs import go
from trainer.formats.gguf import convert
from trainer.formats.server_layers import lora_layers
from trainer.formats.weights import cache_folder
from trainer.policy.packing import Tokens, pack
from trainer.policy.policies import open_policy

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

# Whose tiny model says the same whatever it is asked: there is nothing to learn from its ratings.
NOTHING_SAID = {"gemma"}
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


def ran(model: Path, folder: Path, server_format: str) -> dict[str, Any]:
    tokenizer().save_pretrained(model)
    lines = sample_lines(model, count=6, tokens=6)
    result, _ = go(run_folder(folder / "run", model, lines, server_format=server_format))
    return result


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_whole_run_of_each_kind(kind: str, tmp_path: Path) -> None:
    result = ran(tiny.make(kind, tmp_path / "model", vocabulary=259), tmp_path, "gguf")
    assert result["status"] in ("passed", "rejected", "empty"), result["reason"]
    assert result["status"] == "passed" or kind in NOTHING_SAID, result["reason"]


@pytest.mark.parametrize("kind", tiny.SEEING)
def test_a_whole_run_of_a_model_that_also_sees(kind: str, tmp_path: Path) -> None:
    """Its adapter has the names of the whole model's files, whichever class the trainer loads."""
    model = tiny.make(kind, tmp_path / "model", vocabulary=259)
    result = ran(model, tmp_path, "gguf")
    assert result["status"] == "passed", result["reason"]
    adapter = Path(result["adapter"])
    assert all(name.startswith("model.language_model.layers.") for name in lora_layers(adapter))
    convert(adapter, model, tmp_path / "adapter.gguf")
    row = pack([Tokens((5, 6, 7, 8, 9), (11, 12, 13), 1.0)])
    preset = presets.resolve("balanced", {})
    policy = open_policy("torch", model, preset, parent=adapter, threads=1, seed=1, server_format="gguf")
    with policy.wearing(adapter):
        worn = policy.log_probs(row).plain
    assert np.array_equal(policy.log_probs(row).plain, worn), "the same adapter, to go on from and to wear"
    with policy.wearing(None):
        assert not np.array_equal(policy.log_probs(row).plain, worn)
