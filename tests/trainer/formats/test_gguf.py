"""The GGUF file against the PEFT folder, tensor by tensor. Against llama-server itself: test_llamacpp (backends)."""

import json

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from trainer.formats.architectures import paired
from trainer.formats.gguf import convert
from trainer.formats.manifest import AdapterError

HIDDEN, HEADS, GROUPS, DEEP = 32, 4, 2, 2
PLAIN = {
    "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32), "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
}  # fmt: skip
FUSED = {
    "self_attn.qkv_proj": (64, 32), "self_attn.o_proj": (32, 32),
    "mlp.gate_up_proj": (96, 32), "mlp.down_proj": (32, 48),
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def make_model(folder, kind, prefix="model."):
    """What the converter looks at of a model: its config, and the names and shapes of its layers."""
    folder.mkdir()
    text = {"model_type": kind, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "num_hidden_layers": DEEP}
    config = {"model_type": kind, "text_config": text} if kind == "gemma3" else text
    (folder / "config.json").write_text(json.dumps(config))
    each = (FUSED if kind == "phi3" else PLAIN).items()
    layers = {f"{prefix}layers.{n}.{k}": shape for n in range(DEEP) for k, shape in each}
    layers |= {"model.embed_tokens": (100, HIDDEN), "lm_head": (100, HIDDEN)}
    save_file({f"{k}.weight": np.zeros(v, np.float32) for k, v in layers.items()}, folder / "model.safetensors")
    return layers


def make_adapter(folder, layers, *, rank=4, cast=np.float32, ranks=None, **config):
    folder.mkdir()
    numbers = np.random.default_rng(0)
    tensors = {}
    for module, (outs, ins) in layers.items():
        if "layers" not in module:
            continue
        r = (ranks or {}).get(module.rpartition(".")[2], rank)
        for side, shape in (("A", (r, ins)), ("B", (outs, r))):
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = numbers.normal(size=shape).astype(cast)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return tensors


def read(path):
    reader = gguf.GGUFReader(path)
    fields = {f.name: f.contents() for f in reader.fields.values() if not f.name.startswith("GGUF.")}
    # llama.cpp counts dimensions from the fastest: numpy's shape is the other way round.
    return fields, {t.name: np.array(t.data) for t in reader.tensors}


def undone(rows, heads):
    """The permutation's inverse, row by row, said as llama.cpp's own converter documents it."""
    size = rows.shape[0] // heads
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(size // 2):
            for half in range(2):
                out[head * size + half * (size // 2) + i] = rows[head * size + 2 * i + half]
    return out


# Kinds whose layers have the usual names, and what llama.cpp calls them; all kinds against its converter: tests/models.
USUAL = {
    "llama": "llama", "mistral": "llama", "granite": "granite", "smollm3": "smollm3", "qwen2": "qwen2",
    "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3", "gemma3_text": "gemma3", "phi3": "phi3",
    "exaone4": "exaone4", "seed_oss": "seed_oss",
}  # fmt: skip
IN_PAIRS = {"llama", "mistral", "granite", "smollm3"}


@pytest.mark.parametrize("kind", USUAL)
def test_every_tensor_is_pefts(tmp_path, kind):
    prefix = "model.language_model." if kind == "gemma3" else "model."
    layers = make_model(tmp_path / "model", kind, prefix)
    given = make_adapter(tmp_path / "adapter", layers)
    convert(tmp_path / "adapter", tmp_path / "model", tmp_path / "out" / "v1.gguf")
    fields, found = read(tmp_path / "out" / "v1.gguf")
    assert fields == {
        "general.architecture": USUAL[kind],
        "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0,
    }  # fmt: skip
    assert len(found) == len(given)
    for module in (m for m in layers if "layers" in m):
        n, _, layer = module.removeprefix(f"{prefix}layers.").partition(".")
        name = f"blk.{n}.{NAMES[layer]}.weight"
        a, b = (given[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        b_found = found[f"{name}.lora_b"]
        if kind in IN_PAIRS and layer in ("self_attn.q_proj", "self_attn.k_proj"):
            b_found = undone(b_found, HEADS if layer == "self_attn.q_proj" else GROUPS)
        assert np.array_equal(found[f"{name}.lora_a"], a) and np.array_equal(b_found, b), module
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["v1.gguf"]


def make_gemma_with_pictures(folder):
    """In test_fuse's sizes. transformers writes its files under other names than it has the modules."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    from tests.harness import tiny

    text = {
        "vocab_size": 262, "hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": DEEP, "head_dim": 8,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    marks = {"boi_token_index": 259, "eoi_token_index": 260, "image_token_index": 261, "mm_tokens_per_image": 4}
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config=vision, **marks)
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def trained_adapter(model, folder):
    """Of our own trainer, with a B that is not 0; its tensors."""
    from tests.harness import tiny

    policy, numbers = tiny.policy(model), np.random.default_rng(0)
    policy.wear(
        {name: numbers.normal(size=tensor.shape).astype(np.float32) for name, tensor in policy.adapter().items()}
    )
    folder.mkdir()
    policy.save(folder)
    return load_file(folder / "adapter_model.safetensors")


def test_a_model_that_also_sees_has_its_adapter_on_its_text_part(tmp_path):
    model = make_gemma_with_pictures(tmp_path / "model")
    given = trained_adapter(model, tmp_path / "adapter")
    convert(tmp_path / "adapter", model, tmp_path / "v1.gguf")
    found = read(tmp_path / "v1.gguf")[1]
    assert len(found) == len(given) == 2 * DEEP * len(PLAIN)
    for n in range(DEEP):
        for layer in PLAIN:
            for side in "AB":
                tensor = given[f"base_model.model.model.language_model.layers.{n}.{layer}.lora_{side}.weight"]
                assert np.array_equal(found[f"blk.{n}.{NAMES[layer]}.weight.lora_{side.lower()}"], tensor)


def deltas(path):
    """scale · B · A of each layer, as llama.cpp computes it: one alpha, divided by each tensor's rank."""
    fields, found = read(path)
    pairs = {n.removesuffix(".lora_a"): (found[n], found[n[:-1] + "b"]) for n in found if n.endswith("lora_a")}
    return {name: fields["adapter.lora.alpha"] / a.shape[0] * b @ a for name, (a, b) in pairs.items()}


@pytest.mark.parametrize(
    ("config", "ranks", "scale"),
    [
        ({"use_rslora": True}, None, lambda layer, r: 8 / r**0.5),
        ({"rank_pattern": {"up_proj": 2}}, {"up_proj": 2}, lambda layer, r: 8 / r),
        ({"rank_pattern": {"up_proj": 2}, "use_rslora": True}, {"up_proj": 2}, lambda layer, r: 8 / r**0.5),
        ({"alpha_pattern": {"q_proj": 1}}, None, lambda layer, r: (1 if layer == "q_proj" else 8) / r),
    ],
)
def test_the_change_to_the_weights_is_pefts(tmp_path, config, ranks, scale):
    layers = make_model(tmp_path / "model", "qwen2")
    given = make_adapter(tmp_path / "adapter", layers, ranks=ranks, **config)
    convert(tmp_path / "adapter", tmp_path / "model", tmp_path / "v1.gguf")
    found = deltas(tmp_path / "v1.gguf")
    for module in (m for m in layers if "layers" in m):
        n, _, layer = module.removeprefix("model.layers.").partition(".")
        a, b = (given[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        wanted = scale(module.rpartition(".")[2], a.shape[0]) * b @ a
        np.testing.assert_allclose(found[f"blk.{n}.{NAMES[layer]}.weight"], wanted, rtol=1e-5, atol=1e-5)


def test_half_precision_is_widened(tmp_path):
    layers = make_model(tmp_path / "model", "qwen2")
    given = make_adapter(tmp_path / "adapter", layers, cast=np.float16)
    convert(tmp_path / "adapter", tmp_path / "model", tmp_path / "v1.gguf")
    found = read(tmp_path / "v1.gguf")[1]["blk.0.ffn_up.weight.lora_a"]
    assert found.dtype == np.float32
    assert np.array_equal(found, given["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"])


def test_bfloat16_is_widened(tmp_path):
    import torch
    from safetensors.torch import save_file as save_torch

    layers = make_model(tmp_path / "model", "qwen2")
    make_adapter(tmp_path / "adapter", layers)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    halved = {name: torch.from_numpy(array).bfloat16() for name, array in load_file(path).items()}
    save_torch(halved, path)
    convert(tmp_path / "adapter", tmp_path / "model", tmp_path / "v1.gguf")
    found = read(tmp_path / "v1.gguf")[1]["blk.0.ffn_up.weight.lora_a"]
    wanted = halved["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"].float().numpy()
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_a_layer_that_cannot_have_one_is_named(tmp_path, module):
    layers = make_model(tmp_path / "model", "llama")
    given = make_adapter(tmp_path / "adapter", layers)
    for side, shape in (("A", (4, HIDDEN)), ("B", (100, 4))):
        given[f"base_model.model.{module}.lora_{side}.weight"] = np.ones(shape, np.float32)
    save_file(given, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=module):
        convert(tmp_path / "adapter", tmp_path / "model", tmp_path / "v1.gguf")
    assert not (tmp_path / "v1.gguf").exists()


def test_another_architecture_is_named(tmp_path):
    layers = make_model(tmp_path / "model", "mamba")
    make_adapter(tmp_path / "adapter", layers)
    with pytest.raises(AdapterError, match="mamba"):
        convert(tmp_path / "adapter", tmp_path / "model", tmp_path / "v1.gguf")


@given(heads=st.integers(1, 6), half=st.integers(1, 8), rank=st.integers(1, 5))
def test_the_permutation_has_an_inverse(heads, half, rank):
    rows = np.arange(heads * 2 * half * rank, dtype=np.float32).reshape(heads * 2 * half, rank)
    assert np.array_equal(undone(paired(rows, heads), heads), rows)
