"""What a model's size and experts change in a run, and that a person's word stands."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from config import presets
from scripts.harness.lora import random_adapter
from scripts.models import tiny as tiny_models
from tests.harness import tiny
from tests.trainer.formats.test_model_info import MIXTURES, make
from tests.trainer.policy.test_torch_policy import ROWS, step
from trainer.formats import model_info
from trainer.formats.manifest import AdapterError
from trainer.formats.model_info import Profile
from trainer.launch import adapter_layers
from trainer.policy.autoscale import SET, LayerPlan, fit, layer_plan, rate_factor, short_names, trained_layers
from trainer.policy.packing import pack
from trainer.policy.policies import open_policy
from trainer.serve.batched_lora import read_adapter

SMOLLM2 = Profile("llama", 134_515_008, 134_515_008, 0, 0, "counted")
LAYERS = [f"model.layers.0.self_attn.{n}_proj" for n in "qkvo"] + ["model.layers.0.mlp.gate_proj"]
MOE_LAYERS = [*LAYERS[:4], "model.layers.0.mlp.gate", "model.layers.0.mlp.experts.0.w1", "model.layers.1.mlp.up_proj"]


def dense(active):
    return Profile("llama", int(active), int(active), 0, 0, "counted")


def mixture(total, active):
    return Profile("qwen3_moe", int(total), int(active), 128, 8, "counted")


@pytest.mark.parametrize("name", presets.names())
def test_the_model_that_was_measured_keeps_its_numbers(name):
    preset = presets.resolve(name, {})
    fitted, told = fit(preset, name, {}, SMOLLM2)
    assert fitted == preset
    assert "measured on SmolLM2-135M" in told["learning_rate"].reason
    assert {key: choice.value for key, choice in told.items()} == preset.model_dump()


def test_the_presets_differ_in_rate_by_the_published_factors():
    rates = [presets.resolve(name, {}).learning_rate for name in ("careful", "balanced", "aggressive")]
    assert np.allclose(np.array(rates) / rates[1], [0.6, 1.0, 1.6])


@given(st.floats(1e3, 1e13), st.floats(1, 100))
def test_a_larger_model_never_learns_faster(active, times):
    smaller, larger = rate_factor(dense(active))[0], rate_factor(dense(active * times))[0]
    assert 0.004 <= larger <= smaller + 1e-9 <= 1 + 1e-9


def test_between_the_two_known_sizes_the_rate_is_on_a_straight_line():
    assert rate_factor(dense(45e9))[0] == pytest.approx(0.005)
    middle, why = rate_factor(dense((135e6 * 45e9) ** 0.5))
    assert middle == pytest.approx(0.005**0.5)
    assert "not measured at this size" in why


def test_a_mixture_gets_more_rank_less_pull_and_a_lower_rate():
    preset = presets.resolve("balanced", {})
    fitted, told = fit(preset, "balanced", {}, mixture(30e9, 3e9))
    alone, _ = fit(preset, "balanced", {}, dense(3e9))
    assert (fitted.rank, fitted.alpha, fitted.kl_ref) == (24, 48.0, 0.025)
    assert fitted.learning_rate == pytest.approx(alone.learning_rate * 0.85)
    assert "10 parameters to each active one" in told["learning_rate"].reason
    assert fit(preset, "balanced", {}, mixture(600e9, 40e9))[0].learning_rate == pytest.approx(
        fit(preset, "balanced", {}, dense(40e9))[0].learning_rate * 0.70 * 0.35
    )


def test_a_sample_is_no_longer_than_the_model_can_read():
    preset = presets.resolve("balanced", {})
    fitted, choices = fit(preset, "balanced", {}, replace(SMOLLM2, context=1024))
    assert fitted.max_seq_len == 1024
    assert "cannot read" in choices["max_seq_len"].reason
    fitted, _ = fit(preset, "balanced", {}, replace(SMOLLM2, context=131_072))
    assert fitted == preset


def test_a_giant_gets_a_small_adapter():
    fitted, told = fit(presets.resolve("balanced", {}), "balanced", {}, dense(70e9))
    assert (fitted.rank, fitted.alpha) == (8, 16.0)
    assert "8 above 45 B" in told["rank"].reason


def test_what_a_person_sets_stands_and_is_said():
    given = {"learning_rate": 3e-3, "rank": 4, "kl_ref": 0.5}
    fitted, told = fit(presets.resolve("balanced", given), "balanced", given, mixture(30e9, 3e9))
    assert (fitted.learning_rate, fitted.rank, fitted.alpha, fitted.kl_ref) == (3e-3, 4, 32.0, 0.5)
    assert told["learning_rate"].reason.startswith("set in run.json (train.overrides); this model would get 5.02e-05")
    assert told["rank"].value == 4 and "would get 24" in told["rank"].reason


# --- which layers -------------------------------------------------------------------------------------------------


def test_a_dense_model_trains_every_linear_layer_and_a_mixture_its_attention():
    assert trained_layers(LAYERS, "auto", SMOLLM2)[0] == LAYERS
    found, why = trained_layers(MOE_LAYERS, "auto", mixture(30e9, 3e9))
    assert found == LAYERS[:4]
    assert "attention only" in why


def test_attention_can_be_asked_for():
    assert trained_layers(LAYERS, "attention", SMOLLM2) == (LAYERS[:4], f"{SET}: attention only")
    assert trained_layers(MOE_LAYERS, "attention", mixture(30e9, 3e9))[0] == LAYERS[:4]


def test_what_looks_like_a_router_inside_attention_stays_frozen():
    names = [*MOE_LAYERS, "model.layers.0.self_attn.indexer.wq_b", "model.layers.0.self_attn.router"]
    assert trained_layers(names, "auto", mixture(30e9, 3e9))[0] == LAYERS[:4]


def test_a_mixture_without_a_block_called_attention_is_refused():
    with pytest.raises(AdapterError, match="called attention"):
        trained_layers(["model.layers.0.mixer.in_proj"], "auto", mixture(30e9, 3e9))


@pytest.mark.parametrize("server_format", ["peft", "gguf", "merged", "mlx"])
def test_a_mixture_without_attention_is_told_of_before_a_rating_is_spent(tmp_path, server_format):
    config = {"model_type": "granitemoehybrid", "num_local_experts": 4, "num_hidden_layers": 1, "hidden_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.layers.0.mamba.in_proj.weight": np.zeros((8, 4), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(AdapterError, match="granitemoehybrid has no linear layers in a block that is called attention"):
        adapter_layers(str(tmp_path), server_format, "balanced", {})


def test_an_adapter_of_another_server_is_no_parent(tmp_path):
    model = tiny_models.make("glm4", tmp_path / "model")
    parent = random_adapter(model, tmp_path / "v0003", seed=1, target_modules=["q_proj", "o_proj"])
    sentence = r"^The live version v0003 was made for another server: .* on o_proj, .*`rlproxy promote base`"
    with pytest.raises(AdapterError, match=sentence):
        adapter_layers(str(model), "gguf", "balanced", {}, parent)
    assert adapter_layers(str(model), "merged", "balanced", {}, parent) == LayerPlan("glm4", ("o_proj", "q_proj"), ())
    preset = presets.resolve("balanced", {})
    tiny.tokenizer().save_pretrained(model)
    with pytest.raises(AdapterError, match=sentence):
        open_policy("torch", model, preset, parent=parent, threads=1, seed=1, server_format="gguf")


@pytest.mark.parametrize("asked", ["auto", "attention"])
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("model.language_model.layers.0.self_attn.q_proj", "model.vision_tower.encoder.layers.0.self_attn.q_proj"),
        ("model.language_model.layers.0.self_attn.q_proj", "model.connector.attention.proj"),
        ("model.text_model.layers.0.self_attn.q_proj", "model.connector.modality_projection.proj"),
        ("model.text_model.layers.0.self_attn.q_proj", "model.vision_model.encoder.layers.0.self_attn.q_proj"),
        ("model.layers.0.self_attn.q_proj", "visual.blocks.0.attn.proj"),
        ("model.layers.0.self_attn.q_proj", "audio_tower.layers.0.self_attn.q_proj"),
        ("model.layers.0.self_attn.q_proj", "multi_modal_projector.attention.linear_1"),
    ],
)
def test_what_reads_pictures_and_sound_is_not_trained(asked, text, other):
    assert trained_layers([other, text], asked, SMOLLM2)[0] == [text]


def test_a_short_name_takes_in_no_other_layer():
    assert short_names(LAYERS[:4], LAYERS) == ["k_proj", "o_proj", "q_proj", "v_proj"]
    both = ["a.self_attn.dense", "a.mlp.dense"]
    assert short_names(both[:1], both) == both[:1]


@pytest.fixture(scope="module", params=MIXTURES)
def moe(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / request.param
    make(folder, request.param, initializer_range=0.2, **MIXTURES[request.param])
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_on_a_real_mixture_neither_router_nor_expert_trains(moe, tmp_path):
    policy = tiny.policy(moe)
    assert not [name for name in policy.trained if model_info.picks_or_is_expert(name)]
    assert all(".self_attn." in name for name in policy.trained)
    assert len(policy.trained) >= 3 * 2 * 4  # layers, A and B, q k v o or what it has instead
    packed = pack(ROWS)
    before = policy.log_probs(packed).plain
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if n not in policy.trained}
    step(policy, ROWS)
    after = policy.log_probs(packed).plain
    assert np.abs(after - before).max() > 1e-3
    assert all(bool((p == frozen[n]).all()) for n, p in policy.model.named_parameters() if n in frozen)
    policy.save(tmp_path)
    again = tiny.policy(moe, parent=tmp_path)
    np.testing.assert_allclose(again.log_probs(packed).plain, after, atol=1e-5)
    assert again.trained.keys() == policy.trained.keys()
    assert read_adapter("v1", tmp_path, AutoModelForCausalLM.from_pretrained(moe)).pairs  # the built-in server's way


def test_an_older_adapter_on_experts_is_worn_whole_and_trained_without_them(tmp_path):
    from peft import LoraConfig, get_peft_model

    from trainer.formats.lora_files import save_adapter
    from trainer.policy.torch_policy import _peft

    folder = tmp_path / "m"
    make(folder, "Qwen2Moe", initializer_range=0.2, **MIXTURES["Qwen2Moe"])
    tiny.tokenizer().save_pretrained(folder)
    names = ["q_proj", "shared_expert.up_proj", "shared_expert_gate"]
    config = LoraConfig(r=4, target_modules=names, init_lora_weights=False, task_type="CAUSAL_LM")
    with _peft():
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    (tmp_path / "v1").mkdir()
    save_adapter(model, "default", tmp_path / "v1", base_name="m")
    policy = tiny.policy(folder, parent=tmp_path / "v1")
    assert {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in policy.trained} == {"q_proj"}
    with policy.wearing(tmp_path / "v1"):
        pass
    assert {n for n, p in policy.model.named_parameters() if p.requires_grad} == set(policy.trained)
    experts = {n: p.clone() for n, p in policy.model.named_parameters() if "shared_expert" in n and "lora" in n}
    assert experts
    step(policy, ROWS)
    for name, parameter in policy.model.named_parameters():
        if name in experts:
            assert bool((parameter == experts[name]).all())
    (tmp_path / "v2").mkdir()
    policy.save(tmp_path / "v2")
    packed = pack(ROWS)
    expected = policy.log_probs(packed).plain
    np.testing.assert_allclose(tiny.policy(folder, parent=tmp_path / "v2").log_probs(packed).plain, expected, atol=1e-5)


def test_the_layers_are_known_from_the_files_alone(tmp_path):
    from scripts.models import tiny as tiny_models

    plain = layer_plan(tiny_models.make("qwen2", tmp_path / "qwen2"), "gguf", "auto")
    assert (plain.kind, plain.left_out) == ("qwen2", ())
    assert plain.trained == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    narrow = layer_plan(tiny_models.make("deepseek_v3", tmp_path / "deepseek"), "gguf", "auto")
    assert narrow.trained == ("o_proj",) and set(narrow.left_out) >= {"q_a_proj", "q_b_proj", "kv_b_proj"}
    assert "which its server cannot wear" in str(narrow)
    whole = layer_plan(tmp_path / "deepseek", "merged", "auto")
    assert whole.left_out == ("kv_b_proj",), "a layer that llama.cpp has in two"
    assert layer_plan(tmp_path / "deepseek", "peft", "auto").left_out == ()
    with pytest.raises(AdapterError, match="mamba"):
        layer_plan(tiny_models.make_unknown(tmp_path / "unknown"), "gguf", "auto")
