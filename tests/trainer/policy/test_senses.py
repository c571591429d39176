"""What reads pictures or sound stays as it is: whatever a run does, and whatever its parent adapter is on."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.harness import tiny
from tests.trainer.formats.test_gguf import make_gemma_with_pictures
from trainer.mis_po import Terms
from trainer.policy.packing import Tokens, pack
from trainer.policy.senses import ChangedSenses, is_sense

ROWS = [Tokens((1, 50, 60), (70, 80, 90, 2), 1.0), Tokens((1, 51), (71, 2), 1.0)]


@pytest.mark.parametrize(
    "name",
    [
        "model.vision_model.encoder.layers.0.self_attn.q_proj",  # Idefics3, SmolVLM
        "model.connector.modality_projection.proj",
        "model.vision_tower.encoder.layers.0.mlp.fc1.weight",  # Gemma 3
        "base_model.model.model.multi_modal_projector.mm_input_projection_weight",
        "model.visual.merger.mlp.0",  # Qwen
        "model.audio_tower.layers.0.self_attn.q_proj",
    ],
)
def test_names_of_what_reads(name):
    assert is_sense(name)


@pytest.mark.parametrize(
    "name",
    [
        "model.text_model.layers.0.self_attn.q_proj",
        "base_model.model.model.language_model.layers.0.altup.modality_router",
        "model.layers.3.mlp.down_proj",
        "lm_head",
    ],
)
def test_names_of_what_writes(name):
    assert not is_sense(name)


@pytest.fixture
def seeing(tmp_path):
    return make_gemma_with_pictures(tmp_path / "model")


def a_step(policy):
    packed = pack(ROWS)
    old = policy.log_probs(packed).plain
    ones = np.ones_like(old)
    policy.backward(packed, Terms(old, old, ones, ones, ones), lambda xp, theta, t: (-(t.advantage * theta).sum(), {}))
    assert policy.step(1e-2, 1.0) > 0


def values(policy):
    return {name: p.detach().clone() for name, p in policy.model.named_parameters() if is_sense(name)}


def test_a_run_changes_none_of_them(seeing, tmp_path):
    policy = tiny.policy(seeing)
    assert not [name for name in policy.trained if is_sense(name)] and policy.trained
    before = values(policy)
    assert len(before) > 10 and ("frozen", len(before)) in [choice[:2] for choice in policy.choices]
    worn = policy.adapter()
    a_step(policy)
    assert any(not np.array_equal(worn[name], now) for name, now in policy.adapter().items())
    assert all(torch.equal(before[name], now) for name, now in values(policy).items())
    (tmp_path / "out").mkdir()
    policy.save(tmp_path / "out")
    assert not [name for name in load_file(tmp_path / "out" / "adapter_model.safetensors") if is_sense(name)]


def test_a_candidate_of_a_changed_one_is_not_saved(seeing, tmp_path):
    policy = tiny.policy(seeing)
    next(p for name, p in policy.model.named_parameters() if "vision_tower" in name).data.add_(0.5)
    with pytest.raises(ChangedSenses, match="its values have changed"):
        policy.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_that_trains_is_not_saved(seeing, tmp_path):
    policy = tiny.policy(seeing)
    next(p for name, p in policy.model.named_parameters() if "projector" in name).requires_grad = True
    with pytest.raises(ChangedSenses, match=r"projector.* trains"):
        policy.save(tmp_path / "out")


def test_a_parent_from_elsewhere_that_is_on_them_is_worn_and_trains_in_its_text_layers_alone(seeing, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    tiny.policy(seeing).save(parent)
    tensors = load_file(parent / "adapter_model.safetensors")
    layer = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj"
    draw = np.random.default_rng(1)
    tensors |= {
        f"{layer}.lora_A.weight": draw.normal(size=(4, 32)).astype(np.float32),
        f"{layer}.lora_B.weight": draw.normal(size=(32, 4)).astype(np.float32),
    }
    save_file(tensors, parent / "adapter_model.safetensors")
    config = json.loads((parent / "adapter_config.json").read_text())
    config["target_modules"] = r".*(language_model.*|layers\.0\.self_attn)\.q_proj"
    (parent / "adapter_config.json").write_text(json.dumps(config))
    policy = tiny.policy(seeing, parent)
    loras = {name: p for name, p in policy.model.named_parameters() if ".lora_" in name and is_sense(name)}
    assert loras and not any(p.requires_grad for p in loras.values())
    with policy.wearing(None):
        pass
    with policy.wearing(parent):
        pass
    assert not any(p.requires_grad for p in loras.values()) and all(not is_sense(name) for name in policy.trained)
    a_step(policy)
    (tmp_path / "out").mkdir()
    policy.save(tmp_path / "out")
