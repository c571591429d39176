"""Which layers llama.cpp wears a LoRA on, in which order of rows. All kinds before a real server: tests/models."""

import numpy as np
import pytest
from gguf import MODEL_ARCH as Arch
from gguf import MODEL_TENSOR as Tensor
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats import server_layers
from trainer.formats.architectures import ARCHITECTURES, Heads, LayerTensor, find_tensor, ordered, tiled, wearable
from trainer.formats.manifest import AdapterError


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_each_kind_has_a_name_for_what_attention_puts_out(kind):
    """Models name that layer in three ways."""
    names = ("self_attn.o_proj", "self_attn.out_proj", "self_attn.dense")
    assert any(find_tensor(f"model.layers.1.{name}", ARCHITECTURES[kind], 2, merged=True) for name in names)


@pytest.mark.parametrize("kind", ["glm4", "glm4_moe"])
def test_a_layer_that_would_end_the_server_is_left_out(kind):
    assert find_tensor("model.layers.1.self_attn.o_proj", ARCHITECTURES[kind], 2) is None
    assert find_tensor("model.layers.1.self_attn.q_proj", ARCHITECTURES[kind], 2) is not None


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
def test_a_model_that_also_sees_has_them_in_its_text_part(prefix):
    tensor = find_tensor(f"{prefix}layers.3.self_attn.q_proj", Arch.GEMMA3, 4)
    assert tensor == LayerTensor(Tensor.ATTN_Q, "blk.3.attn_q")
    assert find_tensor("vision_tower.encoder.layers.3.self_attn.q_proj", Arch.GEMMA3, 4) is None


def test_what_a_graph_multiplies_without_the_adapter_is_left_out_but_may_be_merged():
    """llama.cpp's DeepSeek: the adapter would load, and do nothing."""
    narrow = "model.layers.0.self_attn.q_a_proj"
    assert find_tensor(narrow, Arch.DEEPSEEK2, 2) is None
    assert find_tensor(narrow, Arch.DEEPSEEK2, 2, merged=True) == LayerTensor(Tensor.ATTN_Q_A, "blk.0.attn_q_a")
    assert find_tensor("model.layers.0.self_attn.kv_b_proj", Arch.DEEPSEEK2, 2, merged=True) is None, (
        "it is split there"
    )
    assert Tensor.ATTN_OUT in wearable(Arch.DEEPSEEK2)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_each_head_of_values_goes_to_its_tile(keys, each, size):
    heads = Heads(1, 1, keys, keys * each, 1, size)
    rows = np.arange(keys * each * size, dtype=np.float32).reshape(-1, 1)
    moved = tiled(rows, heads)
    for key in range(keys):
        for value in range(each):
            old, new = (key * each + value) * size, (value * keys + key) * size
            assert np.array_equal(moved[new : new + size], rows[old : old + size])


def test_linear_attention_keeps_queries_and_keys_where_they_are():
    heads = Heads(2, 1, 2, 4, 3, 5)
    fixed = 2 * heads.linear_keys * heads.linear_key_size
    b = np.arange((fixed + 20) * 2, dtype=np.float32).reshape(-1, 2)
    a = np.ones((2, 7), np.float32)
    module = "model.layers.0.linear_attn.in_proj_qkv"
    same_a, moved = ordered(LayerTensor(Tensor.ATTN_QKV, "blk.0.attn_qkv"), module, a, b, Arch.QWEN35, heads)
    assert (
        same_a is a
        and np.array_equal(moved[:fixed], b[:fixed])
        and np.array_equal(moved[fixed:], tiled(b[fixed:], heads))
    )
    wide = np.arange(2 * 20, dtype=np.float32).reshape(2, 20)
    moved_a, same_b = ordered(
        LayerTensor(Tensor.SSM_OUT, "blk.0.ssm_out"), "model.layers.0.linear_attn.out_proj", wide, b, Arch.QWEN35, heads
    )
    assert same_b is b and np.array_equal(moved_a, tiled(wide.T, heads).T)


def test_a_server_of_other_files_wears_every_layer():
    for server_format in ("peft", "mlx"):
        assert server_layers.wearable_layers({"model_type": "unheard_of"}, server_format)("anything")


@pytest.mark.parametrize("server_format", ["gguf", "merged"])
def test_a_kind_that_nobody_has_tried_is_refused_in_words(server_format):
    with pytest.raises(AdapterError, match=r"is a unheard_of.*docs/reference/models\.md.*vLLM"):
        server_layers.wearable_layers({"model_type": "unheard_of"}, server_format)


@pytest.mark.parametrize("text_kind", ["ministral3", "mistral"])
def test_the_mistral_3_models_that_also_see_learn_in_llama_cpp(text_kind):
    config = {"model_type": "mistral3", "text_config": {"model_type": text_kind, "num_hidden_layers": 1}}
    is_wearable = server_layers.wearable_layers(config, "gguf")
    assert is_wearable("model.language_model.layers.0.self_attn.q_proj")
    assert not is_wearable("model.vision_tower.transformer.layers.0.attention.q_proj")


def test_mistral_small_4_is_refused_though_its_files_say_mistral3():
    config = {"model_type": "mistral3", "text_config": {"model_type": "mistral4", "num_hidden_layers": 1}}
    with pytest.raises(AdapterError, match="is a mistral4"):
        server_layers.wearable_layers(config, "gguf")
