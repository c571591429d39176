"""Sizes, against what transformers really builds."""

import json
import math

import pytest
import transformers
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from trainer.formats import model_info
from trainer.formats.model_info import ProfileError

SMALL = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = {
    "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 24,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
DENSE = {
    "Llama": {"tie_word_embeddings": True},  # SmolLM2 is one of these
    "Mistral": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
    "Gemma2": {"head_dim": 32},
    "Phi": {"num_key_value_heads": 4},
    "Phi3": {},
}
MIXTURES = {
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "Qwen2Moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    "Olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "DeepseekV3": DEEPSEEK,
}


def make(folder, kind, **changes):
    config = getattr(transformers, f"{kind}Config")(**(SMALL | changes))
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.save_pretrained(folder)
    return sum({t.data_ptr(): t.numel() for t in model.state_dict().values()}.values())


@pytest.mark.parametrize("kind", DENSE)
def test_a_dense_model_is_counted_exactly_and_computed_closely(tmp_path, kind):
    real = make(tmp_path, kind, **DENSE[kind])
    found = model_info.read(tmp_path)
    assert (found.total, found.active, found.experts, found.mixture) == (real, real, 0, False)
    computed = model_info.measure(json.loads((tmp_path / "config.json").read_text()), {})
    assert computed.total == pytest.approx(real, rel=0.02)
    assert computed.active == computed.total


@pytest.mark.parametrize("kind", MIXTURES)
def test_of_a_mixture_the_experts_that_wait_are_not_active(tmp_path, kind):
    real = make(tmp_path, kind, **MIXTURES[kind])
    found = model_info.read(tmp_path)
    assert (found.total, found.experts, found.per_token) == (real, 8, 2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    assert experts > 0
    assert found.active == real - experts * 6 // 8
    computed = model_info.measure(json.loads((tmp_path / "config.json").read_text()), {})
    assert computed.total == pytest.approx(real, rel=0.02)
    assert computed.active == pytest.approx(found.active, rel=0.02)


def test_published_sizes():
    """Dimensions of models that everybody knows; sizes as their makers state them."""
    smol = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "tie_word_embeddings": True}  # fmt: skip
    assert model_info.measure(smol, {}).total == 134_515_008
    mixtral = {"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
               "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
               "num_experts_per_tok": 2}  # fmt: skip
    found = model_info.measure(mixtral, {})
    assert (round(found.total / 1e8), round(found.active / 1e8)) == (467, 129)
    qwen = {"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}  # fmt: skip
    found = model_info.measure(qwen, {})
    assert (round(found.total / 1e8), found.active) == (305, pytest.approx(3.3e9, rel=0.02))
    assert str(found) == "qwen3_moe, 8 of 128 experts a token, 3.35 B of 30.5 B parameters active"


def test_the_context_is_read_by_both_its_names():
    size = {"vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    assert model_info.measure(size | {"model_type": "gpt2", "n_positions": 1024}, {}).context == 1024
    assert model_info.measure(size | {"model_type": "llama", "max_position_embeddings": 8192}, {}).context == 8192
    assert model_info.measure(size | {"model_type": "mamba"}, {}).context == 0


def test_packed_weights_are_not_taken_for_the_size(tmp_path):
    real = make(tmp_path, "Llama")
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = {name: ("U32", array.size // 8) for name, array in load_file(tmp_path / "model.safetensors").items()}
    found = model_info.measure(config, tensors)
    assert found.total == pytest.approx(real, rel=0.02)
    assert "packed" in found.source
    del config["hidden_size"]
    with pytest.raises(ProfileError, match="hidden_size"):
        model_info.measure(config, tensors)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"version https://git-lfs.github.com/spec/v1\n",
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (7).to_bytes(8, "little") + b'{"a":{}',
        (10**5).to_bytes(8, "little") + b"[" * 10**5,
    ],
    ids=["empty", "cut", "pointer", "endless", "list", "number", "cut-head", "deep"],
)
def test_a_file_that_is_not_safetensors_is_refused_in_one_sentence(tmp_path, data):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(data)
    for measure in (model_info.read, model_info.linear_shapes):
        with pytest.raises(ProfileError, match=r"model\.safetensors is not a safetensors file"):
            measure(tmp_path)


def test_the_same_weights_under_two_names_count_once(tmp_path):
    real = make(tmp_path, "Llama")
    (tmp_path / "consolidated.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    assert model_info.read(tmp_path).total == real
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    names = load_file(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_info.read(tmp_path).total == real


def test_experts_are_seen_by_their_names_where_the_config_has_another_word():
    config = {"model_type": "new", "number_of_specialists": 4, "hidden_size": 8}
    tensors = {f"layers.0.mlp.experts.{n}.w1.weight": ("F32", 10) for n in range(4)} | {"embed.weight": ("BF16", 100)}
    found = model_info.measure(config, tensors)
    assert (found.total, found.active, found.experts, found.per_token) == (140, 140, 4, 0)
    assert "an unknown number of 4 experts" in str(found)


def test_a_model_that_sees_pictures_has_its_text_part_read():
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_local_experts": 4}}
    found = model_info.measure(config, {"a.experts.gate_up_proj": ("BF16", math.prod((4, 8, 8)))})
    assert (found.architecture, found.experts, found.total) == ("gemma3_text", 4, 256)


@pytest.mark.parametrize(
    ("name", "router", "expert"),
    [
        ("model.layers.0.mlp.gate", True, False),
        ("model.layers.0.mlp.gate_proj", False, False),
        ("model.layers.0.mlp.gate_up_proj", False, False),
        ("model.layers.0.block_sparse_moe.gate", True, False),
        ("model.layers.0.mlp.shared_expert_gate", True, True),
        ("model.layers.0.mlp.shared_experts.up_proj", False, True),
        ("model.layers.0.mlp.experts.base_layer.lora_A.default.weight", False, True),
        ("model.layers.0.mlp.switch_mlp.up_proj", False, True),
        ("model.layers.0.feed_forward.router.layer", True, False),
        ("model.layers.0.self_attn.q_proj", False, False),
    ],
)
def test_routers_and_experts_are_known_by_name(name, router, expert):
    assert (model_info.is_router(name), model_info.is_expert(name)) == (router, expert)
