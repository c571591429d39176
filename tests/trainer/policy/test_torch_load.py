"""Number formats: what stays in fp32 whatever the base computes in, and what is refused in one sentence."""

import io
import warnings
import weakref

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from config import presets
from tests.harness import tiny
from tests.trainer.policy.test_torch_policy import ROWS, step
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import RunError, read_spec
from trainer.policy import policies, torch_load, torch_speed
from trainer.policy.packing import pack
from trainer.policy.torch_policy import TorchPolicy
from trainer.policy.torch_speed import ProductSpeed
from trainer.policy.tree import grow
from trainer.policy.tree_attention import PROOF, Layout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.make_model(tmp_path_factory.mktemp("models") / "tiny", attention_dropout=0.5)


def in_bf16(model, parent=None):
    preset = presets.resolve("balanced", {"rank": 4, "alpha": 8})
    return TorchPolicy(model, preset, parent=parent, threads=1, seed=0, compute="bfloat16")


def test_auto_is_what_the_machine_is_good_at(monkeypatch):
    dtype, why = torch_load.choose_compute("auto", "cpu")
    assert dtype == torch.float32 and "built-in server" in why
    for can, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, can=can: can)
        assert torch_load.choose_compute("auto", "cuda")[0] == expected
    assert torch_load.choose_compute("float32", "cuda") == (torch.float32, "set (train.compute)")


@pytest.mark.parametrize("able", ["avx512_bf16", "amx_bf16"])
def test_only_products_are_rounded_and_only_where_the_cpu_is_faster_so(able, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, able: True})
    monkeypatch.setattr(torch_speed, "measure_products", lambda: ProductSpeed(118e9, 73e9))
    assert torch_load.products_in_bf16("auto", "cpu") is None  # as measured on a Xeon without AMX
    monkeypatch.setattr(torch_speed, "measure_products", lambda: ProductSpeed(140e9, 640e9))
    assert "4.6 times" in str(torch_load.products_in_bf16("auto", "cpu"))
    assert able in str(torch_load.products_in_bf16("auto", "cpu"))
    assert torch_load.products_in_bf16("float32", "cpu") is None
    assert torch_load.products_in_bf16("auto", "cuda") is None
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, able: False})
    assert torch_load.products_in_bf16("auto", "cpu") is None


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Wide enough to be worth it, but for keys and values."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "initializer_range": 0.05}
    return tiny.make_model(tmp_path_factory.mktemp("models") / "wide", **sizes)


@pytest.fixture
def with_products(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(torch_speed, "measure_products", lambda: ProductSpeed(1e9, 2e9))


@pytest.mark.usefixtures("with_products")
def test_rounded_products_leave_everything_else_in_fp32(wide, tmp_path):
    policy, packed = tiny.policy(wide), pack(ROWS)
    exact = policy.log_probs(packed).plain
    assert "avx512_bf16" in str(policy.round_products())
    assert policy.round_products() is None, "nothing is left to round"
    rounded = [n for n, m in policy.model.named_modules() if isinstance(m, torch_load.Bf16Linear)]
    assert {n.rpartition("layers.")[2].split(".")[2] for n in rounded} == {
        "q_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert {p.dtype for p in policy.trained.values()} == {torch.float32}
    assert policy._hidden(packed).dtype == policy._causal.get_output_embeddings().weight.dtype == torch.float32
    before = policy.log_probs(packed).plain
    assert 1e-7 < np.abs(before - exact).mean() < 0.01
    for _ in range(3):
        step(policy, ROWS)
    assert (policy.log_probs(packed).plain - before).mean() > 0.1
    policy.save(tmp_path)
    again = tiny.policy(wide, parent=tmp_path)
    again.round_products()
    np.testing.assert_array_equal(again.log_probs(packed).plain, policy.log_probs(packed).plain)
    bare = tiny.policy(wide)
    bare.round_products()
    with bare.wearing(tmp_path):
        np.testing.assert_array_equal(bare.log_probs(packed).plain, policy.log_probs(packed).plain)
    np.testing.assert_array_equal(bare.log_probs(packed).plain, before)


@pytest.mark.usefixtures("with_products")
def test_rounded_products_push_where_exact_ones_do(wide):
    gradients = []
    for rounded in (True, False):
        policy = tiny.policy(wide)
        if rounded:
            policy.round_products()
        step(policy, ROWS)
        gradients.append(np.concatenate([a.ravel() for n, a in sorted(policy.optimiser().items()) if "exp_avg/" in n]))
    rough, exact = gradients
    assert rough @ exact / np.linalg.norm(rough) / np.linalg.norm(exact) > 0.999


@pytest.mark.usefixtures("with_products")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("also", [{"target_modules": ["q_proj", "lm_head"]}, {"modules_to_save": ["up_proj"]}])
def test_what_a_parent_from_elsewhere_wears_on_the_head_or_trains_whole_stays_exact(also, wide, tmp_path):
    config = LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **({"target_modules": ["q_proj"]} | also))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_peft_model(AutoModelForCausalLM.from_pretrained(wide), config).save_pretrained(tmp_path)
    policy = tiny.policy(wide, parent=tmp_path)
    policy.round_products()
    rounded = [n for n, m in policy.model.named_modules() if isinstance(m, torch_load.Bf16Linear)]
    assert rounded and not [name for name in rounded if "lm_head" in name or "modules_to_save" in name]
    assert {id(p) for p in policy.trained.values()} == {id(p) for p in policy.model.parameters() if p.requires_grad}


def test_each_layer_is_let_go_before_the_next_is_rounded(monkeypatch):
    """A whole model in fp32 beside its copy is half as much memory again as it took to load."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).requires_grad_(False)
    weights = [weakref.ref(layer.weight) for layer in layers]
    there = []
    rounding = torch_load.Bf16Linear.__init__

    def rounded(self, of):
        there.append(sum(weight() is not None for weight in weights))
        rounding(self, of)

    monkeypatch.setattr(torch_load.Bf16Linear, "__init__", rounded)
    assert torch_load.round_products(layers, torch.nn.Identity()) == 4
    assert there == [4, 3, 2, 1]


def test_a_layer_with_a_bias_multiplies_likewise():
    layer = torch.nn.Linear(300, 260).requires_grad_(False)
    entering = torch.randn(5, 300, requires_grad=True)
    rough = torch_load.Bf16Linear(layer)(entering)
    torch.testing.assert_close(rough, layer(entering), atol=0.02, rtol=0.02)
    rough.sum().backward()
    torch.testing.assert_close(entering.grad, layer.weight.sum(0).expand(5, -1), atol=0.1, rtol=0.02)


def test_in_bf16_the_adapter_its_optimiser_and_the_logits_stay_in_fp32(model):
    policy = in_bf16(model)
    assert ("compute", "bfloat16", "set (train.compute)") in policy.choices
    assert {p.dtype for p in policy.trained.values()} == {torch.float32}
    base = {p.dtype for n, p in policy.model.named_parameters() if "lora" not in n and "lm_head" not in n}
    assert base == {torch.bfloat16}
    assert policy._causal.get_output_embeddings().weight.dtype == torch.float32
    hidden = policy._hidden(pack(ROWS))
    assert hidden.dtype == torch.bfloat16 and policy._head(hidden).dtype == torch.float32
    assert "blocks" in [c[1] for c in policy.choices if c[0] == "shared_prefixes"]
    step(policy, ROWS)
    assert {a.dtype for a in policy.optimiser().values()} == {np.dtype(np.float32)}


def test_in_bf16_it_is_the_same_policy_but_for_rounding(model, tmp_path):
    packed = pack(ROWS)
    rough, exact = in_bf16(model), tiny.policy(model)
    gap = np.abs(rough.log_probs(packed).plain - exact.log_probs(packed).plain)
    assert 1e-6 < gap.mean() < 0.05
    for policy in (rough, exact):
        before = policy.log_probs(packed).plain
        for _ in range(3):
            step(policy, ROWS)
        assert (policy.log_probs(packed).plain - before).mean() > 0.1
    rough.save(tmp_path)
    again = in_bf16(model, parent=tmp_path)
    np.testing.assert_array_equal(again.log_probs(packed).plain, rough.log_probs(packed).plain)
    assert {p.dtype for p in again.trained.values()} == {torch.float32}
    (reply,) = again.generate([ROWS[0].prompt], max_tokens=4, temperature=0.8, seed=0)
    assert 1 <= len(reply) <= 4


def test_the_proof_of_tree_attention_still_tells_right_from_wrong_in_bf16(model):
    """Where every token sees its neighbours' branches, the difference is far above the bound."""
    policy = in_bf16(model)
    forest = grow([ROWS[0], ROWS[2]])
    with torch.no_grad():
        right = policy._causal.base_model(**Layout(forest, "cpu", flex=False).inputs()).last_hidden_state
        wrong = policy._causal.base_model(
            input_ids=torch.from_numpy(forest.ids)[None], use_cache=False
        ).last_hidden_state
    assert float((right - wrong).abs().max() / right.abs().max()) > 3 * PROOF[torch.bfloat16]


def test_4_bits_without_a_gpu_are_refused_in_one_sentence(model, tmp_path):
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model), load_in_4bit=True)
    with Progress(folder, io.StringIO()) as progress:
        result = loop.run(folder, progress, Stop())
    assert (result["status"], result["reason"]) == (
        "failed",
        "train.load_in_4bit needs an NVIDIA GPU, and torch finds none here: set it to false.",
    )


def test_4_bits_without_bitsandbytes_say_what_to_install(model, monkeypatch):
    monkeypatch.setattr(torch_load, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'rlproxy\[quant\]'"):
        torch_load.load(model, "cuda", torch.bfloat16, in_4bit=True)


@pytest.mark.parametrize("asked", [{"compute": "bfloat16"}, {"in_4bit": True}])
def test_mlx_does_not_pretend_to_have_them(model, asked):
    with pytest.raises(RunError, match="MLX computes in float32"):
        policies.open_policy("mlx", model, presets.resolve("balanced", {}), parent=None, threads=1, seed=0, **asked)


def test_an_unknown_format_in_run_json_is_an_error(model, tmp_path):
    folder = tiny.run_folder(tmp_path / "run", model, [], compute="float16")
    with pytest.raises(RunError, match="there is auto, float32, bfloat16"):
        read_spec(folder)
