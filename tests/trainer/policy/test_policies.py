"""Which framework trains where. Nothing here needs mlx: tests/trainer/policy/test_mlx_policy.py does."""

import platform
import subprocess
import sys

import numpy as np
import pytest

from config import presets
from scripts.models import tiny as tiny_models
from trainer.io.run_folder import RunError
from trainer.policy import policies
from trainer.policy.packing import Tokens, pack


@pytest.fixture
def machine(monkeypatch):
    """A machine of this kind, with these modules installed."""

    def be(system, processor, *installed):
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: processor)
        monkeypatch.setattr(policies, "find_spec", lambda name: object() if name in installed else None)

    return be


@pytest.mark.parametrize(
    ("system", "processor", "installed", "expected", "why"),
    [
        ("Darwin", "arm64", ("mlx_lm", "torch"), "mlx", "Apple silicon with"),
        ("Darwin", "arm64", ("mlx_lm",), "mlx", "Apple silicon with"),
        ("Darwin", "arm64", ("torch",), "torch", "without mlx-lm"),
        ("Darwin", "x86_64", ("mlx_lm", "torch"), "torch", "no Mac"),
        ("Linux", "aarch64", ("mlx_lm", "torch"), "torch", "no Mac"),
    ],
)
def test_mlx_is_for_apple_silicon_that_has_it(machine, system, processor, installed, expected, why):
    machine(system, processor, *installed)
    chosen, reason = policies.choose("auto")
    assert chosen == expected
    assert why in reason


def test_what_run_json_names_is_used(machine):
    machine("Linux", "x86_64", "mlx_lm", "torch")
    assert policies.choose("mlx") == ("mlx", "run.json names it")
    machine("Darwin", "arm64", "mlx_lm", "torch")
    assert policies.choose("torch") == ("torch", "run.json names it")


@pytest.mark.parametrize(("asked", "installed"), [("mlx", ("torch",)), ("torch", ("mlx_lm",)), ("auto", ())])
def test_what_is_not_installed_is_an_error_that_says_what_to_install(machine, asked, installed):
    machine("Darwin", "arm64", *installed)
    with pytest.raises(RunError, match=r"pip install 'rlproxy\["):
        policies.choose(asked)


def test_the_loop_imports_no_framework():
    look = "import sys, trainer.loop; print([m for m in ('torch', 'peft', 'mlx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.model
@pytest.mark.parametrize("kind", ["llama4_text", "gemma3n_text", "qwen3_5_text"])
def test_kinds_that_are_built_otherwise(kind, weights, tmp_path):
    """A text part below another name, a width for each layer, two kinds of attention. All kinds: tests/models."""
    model = tiny_models.make(kind, tmp_path / "model", tokenizer=weights)
    preset = presets.resolve("balanced", {})
    policy = policies.open_policy("torch", model, preset, parent=None, threads=1, seed=1, server_format="gguf")
    row = Tokens((5, 6, 7, 8), (11, 12), 1.0)
    assert np.isfinite(policy.log_probs(pack([row])).plain).all()
