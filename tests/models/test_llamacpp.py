"""Each kind of model that rlproxy writes GGUF adapters for, as a tiny one with random weights: `make test-models`.

The file against llama.cpp's own converter, tensor by tensor, and its effect in a real llama-server against PEFT.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from scripts.models import tiny
from scripts.models.llamacpp import compare, upstream
from scripts.models.reference import make_adapter
from trainer.formats.architectures import ARCHITECTURES
from trainer.formats.gguf import convert

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]

EXACT = 2e-3  # nats, of a file and a cache in 32 bits
# Their own file of the model is not in 32 bits, or computes otherwise than transformers: without any adapter, too.
LOOSE = {"gpt_oss": 0.05, "gemma4": 0.05, "gemma4_text": 0.05, "gemma3_text": 5e-3, "glm": 5e-3}
# Its tiny model says something else in llama.cpp than in transformers, without any adapter: only the effect is held.
OTHERWISE = {"gemma3n_text"}
# Upstream's converter has no way for a LoRA on this one, whose columns it would have to reorder.
NOT_UPSTREAM = {"qwen3_5_text": "out_proj", "qwen3_5_moe_text": "out_proj"}
# Kinds whose adapter upstream's converter gets wrong or cannot read here. The real server's log-probs judge them.
UPSTREAM_FAILS = {
    "granitemoehybrid": "transformers 5 renames the layer types, so upstream takes no layer for attention",
    "ministral3": "upstream needs the package sentencepiece",
}


@pytest.fixture(scope="session")
def converters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return upstream(tmp_path_factory.mktemp("upstream"))


def read(path: Path) -> tuple[str, dict[str, Any]]:
    reader = gguf.GGUFReader(path)
    field = reader.get_field("general.architecture")
    assert field is not None
    return field.contents(), {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


def test_every_kind_is_tried() -> None:
    """A model that also sees or hears has its text part's type here."""
    assert (
        ARCHITECTURES.keys() - tiny.SEEING.keys() - {"gemma3n", "idefics3"} == tiny.KINDS.keys()
        and len(ARCHITECTURES) >= 35
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.xfail(strict=True, reason=UPSTREAM_FAILS[kind]))
        if kind in UPSTREAM_FAILS
        else kind
        for kind in tiny.KINDS
    ],
)
def test_the_file_is_what_upstream_writes(kind: str, tmp_path: Path, converters: Path) -> None:
    base = tiny.make(kind, tmp_path / "base")
    only = {"q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z"} if kind in NOT_UPSTREAM else ()
    make_adapter(base, tmp_path / "adapter", "gguf", only=tuple(only))
    convert(tmp_path / "adapter", base, tmp_path / "ours.gguf")
    script = converters / "convert_lora_to_gguf.py"
    command = [
        sys.executable, str(script), "--base", str(base), "--outfile", str(tmp_path / "theirs.gguf"),
        "--outtype", "f32", str(tmp_path / "adapter"),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-500:]
    (architecture, ours), (their_architecture, theirs) = read(tmp_path / "ours.gguf"), read(tmp_path / "theirs.gguf")
    assert architecture == their_architecture and ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert np.array_equal(tensor, ours[name]), name


@pytest.mark.parametrize("kind", [*tiny.KINDS, *tiny.SEEING])
def test_a_server_says_what_peft_says(kind: str, tmp_path: Path, converters: Path) -> None:
    result = compare(kind, tmp_path, converters)
    bound = LOOSE.get(kind, EXACT)
    assert kind in OTHERWISE or (result.base <= bound and result.adapter <= bound), result
    assert result.effect > 0.1 and result.served_effect > 0.1, "an adapter that loads and does nothing"
