"""The folder against peft's own. What lora_rows refuses of it is in test_engine."""

import json

import numpy as np
import pytest
from peft import LoraConfig
from safetensors.numpy import load_file, save_file

from scripts.harness.lora import random_adapter
from tests.harness import tiny
from trainer.formats import peft_folder
from trainer.formats.manifest import AdapterError


@pytest.fixture(scope="module")
def shapes(model):
    return {
        name.removesuffix(".weight"): tensor.shape
        for name, tensor in load_file(model / "model.safetensors").items()
        if "proj" in name
    }


def read(folder, shapes):
    return peft_folder.read(folder, shapes, load_file, lambda array: bool(np.isfinite(array).all()))


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"r": 4, "lora_alpha": 8}, {2.0}),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, {4.0}),
        ({"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 1}}, None),
    ],
)
def test_pefts_folder_is_read_with_pefts_scale(model, shapes, tmp_path, config, scales):
    found = read(random_adapter(model, tmp_path / "a", seed=1, **config), shapes)
    assert found.pairs.keys() == shapes.keys()
    if scales:
        assert {pair.scale for pair in found.pairs.values()} == scales
    else:
        assert found.pairs["model.layers.0.self_attn.q_proj"].scale == 4.0
        assert found.pairs["model.layers.1.mlp.up_proj"].scale == 0.25
        assert found.pairs["model.layers.0.mlp.up_proj"].scale == 2.0


def test_a_new_configuration_is_what_peft_would_write(model, shapes, tmp_path):
    policy = tiny.policy(model)
    (tmp_path / "peft").mkdir()
    policy.save(tmp_path / "peft")
    config = peft_folder.new_config(list(shapes), rank=4, alpha=8.0)
    peft_folder.write_config(tmp_path, config, base_name=model.name)
    ours, theirs = (LoraConfig.from_pretrained(folder).to_dict() for folder in (tmp_path, tmp_path / "peft"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "changes the base"),
        ({"peft_type": "IA3"}, "not the configuration of a LoRA"),
        ({"r": 5}, "rank 4"),
        ({"lora_alpha": None}, "no usable"),
    ],
)
def test_a_configuration_that_cannot_be_worn_exactly_is_refused(model, shapes, tmp_path, change, why):
    folder = random_adapter(model, tmp_path / "a", seed=1, r=4, lora_alpha=8)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(AdapterError, match=why):
        read(folder, shapes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t | {"base_model.model.lm_head.weight": np.ones((2, 2), np.float32)}, "not a LoRA matrix"),
        (lambda t: {}, "no LoRA matrices"),
        (lambda t: dict(list(t.items())[:1]), "only one of"),
        (lambda t: {n: a.T.copy() for n, a in t.items()}, "does not fit"),
        (lambda t: {n: a * np.nan for n, a in t.items()}, "not finite"),
        (lambda t: {n.replace("layers.1", "layers.7"): a for n, a in t.items()}, "another model"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(model, shapes, tmp_path, change, why):
    folder = random_adapter(model, tmp_path / "a", seed=1, r=4, lora_alpha=8)
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(AdapterError, match=why):
        read(folder, shapes)


def test_a_torn_file_is_refused(model, shapes, tmp_path):
    folder = random_adapter(model, tmp_path / "a", seed=1, r=4, lora_alpha=8)
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(AdapterError, match="cannot be read"):
        read(folder, shapes)
