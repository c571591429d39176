"""Merged weights against the model that wears the adapter, and what is refused."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from scripts.harness.lora import peft_on_transformers, random_adapter
from tests.harness import tiny
from trainer.formats.manifest import AdapterError
from trainer.formats.merge_weights import fuse

IDS = torch.tensor([[1, 40, 50, 60, 70, 80]])


def log_probs(model):
    with torch.no_grad():
        return torch.log_softmax(model(IDS).logits.double(), -1)


def wearing(model, adapter):
    with peft_on_transformers():
        return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), str(adapter))


@pytest.mark.parametrize("config", [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 2}}])
def test_merged_weights_answer_as_the_adapter_on_its_base(model, tmp_path, config):
    adapter = random_adapter(model, tmp_path / "a", seed=1, **config)
    changed = fuse(adapter, model, tmp_path / "merged")
    worn = wearing(model, adapter)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(model)
    assert changed == 14 and (log_probs(merged) - log_probs(base)).abs().max() > 1e-2
    assert (log_probs(merged) - log_probs(worn)).abs().max() < 1e-4


def test_what_no_lora_touches_stays_with_the_tokenizer_and_the_types(tmp_path):
    model = tiny.make_model(tmp_path / "base")
    halves = {name: tensor.bfloat16() for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(halves, model / "model.safetensors", metadata={"format": "pt"})
    (model / "README.md").write_text("about the base")
    (model / "LICENSE.md").write_text("MIT")
    (model / "pytorch_model.bin").write_bytes(b"a pickle")
    fuse(random_adapter(model, tmp_path / "a", seed=1), model, tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16} and merged.keys() == halves.keys()
    assert torch.equal(merged["model.embed_tokens.weight"], halves["model.embed_tokens.weight"])
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert {"tokenizer.json", "config.json", "LICENSE.md"} <= names
    assert not names & {"README.md", "pytorch_model.bin"}


def test_weights_in_several_files(tmp_path):
    model = tiny.make_model(tmp_path / "base")
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        part = {name: tensors[name] for name, place in weight_map.items() if place == file}
        save_file(part, model / file, metadata={"format": "pt"})
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    adapter = random_adapter(model, tmp_path / "a", seed=1)
    assert fuse(adapter, model, tmp_path / "merged") == 14
    worn = wearing(model, adapter)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (log_probs(merged) - log_probs(worn)).abs().max() < 1e-4


def test_nothing_is_left_behind_where_it_is_refused(model, tmp_path):
    adapter = random_adapter(model, tmp_path / "a", seed=1)
    other = tiny.make_model(tmp_path / "other", hidden_size=32, intermediate_size=64)
    with pytest.raises(AdapterError, match="does not fit this model"):
        fuse(adapter, other, tmp_path / "merged")
    packed = tiny.make_model(tmp_path / "packed")
    tensors = load_file(packed / "model.safetensors")
    save_file(
        {name: tensor.to(torch.float8_e4m3fn) if "q_proj" in name else tensor for name, tensor in tensors.items()},
        packed / "model.safetensors",
    )
    with pytest.raises(AdapterError, match="packed weights cannot take the sum"):
        fuse(adapter, packed, tmp_path / "merged")
    assert not (tmp_path / "merged").exists() and not (tmp_path / ".merged.tmp").exists()
    fuse(adapter, model, tmp_path / "merged")
    with pytest.raises(AdapterError, match="is there already"):
        fuse(adapter, model, tmp_path / "merged")
