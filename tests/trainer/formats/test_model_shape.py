"""Shapes out of headers and out of a config.json alone are the same; what is no model is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.models import published, tiny
from trainer.formats.model_info import ProfileError
from trainer.formats.model_shape import CacheLayer, read
from trainer.policy import autoscale


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "phi3", "gemma4_text", "deepseek_v3", "gpt_oss"])
def test_headers_and_config_say_the_same(kind: str, tmp_path: Path) -> None:
    folder = tiny.make(kind, tmp_path / "model")
    counted = read(folder)
    computed = read(folder / "config.json")
    assert counted.has_weights and not computed.has_weights
    assert counted.profile.total == pytest.approx(computed.profile.total, rel=0.02)  # what is written twice, or not
    assert counted.profile.active == pytest.approx(computed.profile.active, rel=0.02)
    assert counted.cache == computed.cache and counted.cache
    names = [autoscale.trained_layers(shape.linears, "auto", shape.profile)[0] for shape in (counted, computed)]
    shapes = [
        sorted(shape.linears[name] for name in layers) for shape, layers in zip((counted, computed), names, strict=True)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", published.CONFIGS)
def test_published_models_have_the_parameters_that_their_makers_count(name: str, tmp_path: Path) -> None:
    shape = read(published.write(name, tmp_path))
    assert shape.profile.total == pytest.approx(published.PARAMETERS[name], rel=0.005)
    if name == "30B-A3B":
        assert shape.profile.active == pytest.approx(3.3e9, rel=0.03)


def test_the_cache_of_each_kind_of_attention(tmp_path: Path) -> None:
    dense = read(published.write("8B", tmp_path)).cache
    assert dense == [CacheLayer(2 * 8 * 128, 0)] * 36
    mixed = read(published.write("31B", tmp_path)).cache
    assert mixed.count(CacheLayer(2 * 16 * 256, 1024)) == 50  # sliding
    assert mixed.count(CacheLayer(2 * 4 * 512, 0)) == 10  # whose values are their keys
    narrow = read(tiny.make("deepseek_v3", tmp_path / "mla") / "config.json").cache
    assert set(narrow) == {CacheLayer(16 + 8, 0)}
    hybrid = read(tiny.make("qwen3_next", tmp_path / "hybrid") / "config.json").cache
    assert len(hybrid) == 1  # of four layers: what is linear has no cache that grows
    fused = read(tiny.make("phi3", tmp_path / "fused") / "config.json").cache
    assert len(fused) == 4 and {layer.numbers for layer in fused} == {2 * 2 * 16}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not a config.json"),
        ("[]", "does not say its model_type"),
        ("{}", "does not say its model_type"),
        ('{"model_type": "quux9"}', "is a quux9, a kind that transformers .* does not know"),
        ('{"model_type": "llama", "hidden_size": -4}', "hidden_size = -4, which is not a size"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size = 'wide', which is not a size"),
        ('{"model_type": "llama", "num_hidden_layers": true}', "num_hidden_layers = True, which is not a size"),
        ('{"model_type": "llama", "vocab_size": 1e300}', "vocab_size = 1e.300, which is not a size"),
        ('{"model_type": "llama", "hidden_size": 65, "num_attention_heads": 4, "head_dim": null}', "make a llama|size"),
        ('{"model_type": "llama", "hidden_size": 64, "num_key_value_heads": "x"}', "does not make a llama"),
        ('{"model_type": "vit"}', "does not make a vit"),
    ],
)
def test_what_is_not_a_model_is_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ProfileError, match=reason) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"has no config\.json: name a model's folder"):
        read(tmp_path)
    with pytest.raises(ProfileError, match=r"There is no .*/nowhere/config\.json"):
        read(tmp_path / "nowhere" / "config.json")


def test_packed_weights_are_counted_as_what_they_pack(tmp_path: Path) -> None:
    """Two weights in a byte have other shapes in the file than in the model."""
    from safetensors.numpy import load_file, save_file

    folder = tiny.make("llama", tmp_path / "model")
    plain = read(folder)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].view("uint8")[:, ::8].copy()
    save_file(tensors, folder / "model.safetensors")
    packed = read(folder)
    assert packed.has_weights and packed.profile.total == plain.profile.total
    assert packed.linears == plain.linears


def test_custom_code_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "custom.py").write_text("open('ran', 'w')\nclass C: ...\nclass M: ...\n")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ProfileError, match="does not know"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists() and not Path("ran").exists()
