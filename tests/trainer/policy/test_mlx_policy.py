"""mlx against torch, number by number: same weights, same adapter, same lessons. Run by `make test-mlx`."""

import dataclasses
import io
import json
import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.numpy import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from config import presets
from scripts.harness.lora import random_adapter
from tests.harness import tiny
from tests.trainer.runs import StopAfter, go, of, tensors
from trainer import loop, losses, mis_po
from trainer.formats.manifest import AdapterError
from trainer.io.progress import Stop, Stopped
from trainer.lessons.chat_template import Template
from trainer.mis_po import Terms
from trainer.policy.packing import Tokens, pack
from trainer.serve.batched_lora import read_adapter

pytestmark = pytest.mark.mlx

ROWS = [
    Tokens((1, 50, 60), (70, 80, 90, 2), 0.8),
    Tokens((1, 51), (71, 2), 1.0),
    Tokens((1, 52, 53, 54, 55), (72, 73, 74, 75, 76, 77), 0.5),
]
SMALL = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": False}),
    # mlx-lm's own default for theta is 1,000,000 here: wrong unless config.json's rope_parameters are read.
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"head_dim": 16, "final_logit_softcapping": 2.0}),
}


def save(folder, kind, config):
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    kind, config, changes = FAMILIES[request.param]
    return save(tmp_path_factory.mktemp("models") / request.param, kind, config(**SMALL | changes))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny.make_model(tmp_path_factory.mktemp("models") / "tiny")


def mlx_policy(weights, parent=None, **overrides):
    from trainer.policy.mlx_policy import MlxPolicy

    preset = presets.resolve("balanced", {"rank": 4, "alpha": 8} | overrides)
    return MlxPolicy(weights, preset, parent=parent, seed=0)


def both(weights):
    """A policy of each, wearing the same adapter, with a B that is not 0."""
    policies = tiny.policy(weights), mlx_policy(weights)
    noise = np.random.default_rng(0)
    worn = {
        name: noise.normal(0, 0.1, tensor.shape).astype(np.float32) for name, tensor in policies[0].adapter().items()
    }
    for policy in policies:
        policy.wear(worn)
    return policies


def terms(policy, packed):
    old = policy.log_probs(packed).plain
    advantage = np.resize([1.0, -1.0, 0.5], len(packed.lengths)).repeat(packed.lengths)
    share = np.repeat([1 / (length * len(packed.lengths)) for length in packed.lengths], packed.lengths)
    return Terms(old + 0.01, old - 0.2, np.ones_like(old), advantage, share)


def loss(xp, theta, constants):
    return mis_po.loss(xp, theta, constants, kl_ref=0.3, guard_low=0.5, guard_high=2.0)


def gradients(one, other, packed):
    """Both sides' sums and gradients, by the same names."""
    constants = terms(one, packed)
    sums = one.backward(packed, constants, loss), other.backward(packed, constants, loss)
    theirs = {name: p.grad.numpy() for name, p in one.trained.items()}
    return sums, theirs, {name: np.array(array) for name, array in other._gradient.items()}


def _part(constants, part):
    return Terms(*(None if (values := getattr(constants, f)) is None else values[part] for f in Terms.__slots__))


def assert_close(theirs, ours, rtol):
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name], tensor, atol=rtol * np.abs(tensor).max(), rtol=0, err_msg=name)


# --- the same numbers ---


def test_log_probs_and_surprise_are_torchs(model):
    one, other = both(model)
    packed = pack(ROWS)
    np.testing.assert_allclose(other.log_probs(packed).plain, one.log_probs(packed).plain, atol=1e-4)
    np.testing.assert_allclose(other.states(packed), one.states(packed), atol=1e-4 * np.abs(one.states(packed)).max())
    for ours, torchs in zip(other.surprise(packed), one.surprise(packed), strict=True):
        np.testing.assert_allclose(ours, torchs, atol=1e-4)
    assert np.abs(one.surprise(packed).excess).max() > 1e-2


def test_halfway_states_and_leaning_are_torchs(model):
    one, other = both(model)
    packed = pack(ROWS)
    halfway = one.middle(packed)
    np.testing.assert_allclose(other.middle(packed), halfway, atol=1e-4 * np.abs(halfway).max())
    direction = np.random.default_rng(0).normal(0, np.abs(halfway).mean(), halfway.shape[1]).astype(np.float32)
    upright = one.log_probs(packed).plain
    with one.leaning(direction), other.leaning(direction):
        leant = one.log_probs(packed).plain
        np.testing.assert_allclose(other.log_probs(packed).plain, leant, atol=1e-3)
    assert np.abs(leant - upright).max() > 1e-2
    np.testing.assert_allclose(other.log_probs(packed).plain, upright, atol=1e-4)


def test_from_known_states_only_the_head_is_left(model, monkeypatch):
    policy, packed = both(model)[1], pack(ROWS)
    computed, told = policy.log_probs(packed), policy.teach(packed, 8, required_ids=[5])
    states = policy.states(packed)
    monkeypatch.setattr(policy, "_hidden", None)
    for one, other in zip(policy.log_probs(packed, states), computed, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    again = policy.teach(packed, 8, required_ids=[5], states=states)
    np.testing.assert_allclose(again.log_probs, told.log_probs, atol=1e-5)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (0.5, 0), (1.0, 3), (0.8, 20), (1e-6, 0)])
def test_truncated_sampling_is_compared_under_the_same_truncation(llama, top_p, top_k):
    one, other = both(llama)
    replies = one.generate([r.prompt for r in ROWS], max_tokens=12, temperature=0.8, seed=1)
    packed = pack([Tokens(r.prompt, tuple(reply), 0.8, top_p, top_k) for r, reply in zip(ROWS, replies, strict=True)])
    theirs, ours = one.log_probs(packed), other.log_probs(packed)
    np.testing.assert_allclose(ours.sampled, theirs.sampled, atol=1e-4)
    np.testing.assert_allclose(ours.plain, theirs.plain, atol=1e-4)
    assert np.isfinite(theirs.sampled).any()


def test_loss_and_gradient_are_torchs(model):
    one, other = both(model)
    (theirs, ours), *grads = gradients(one, other, pack(ROWS))
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert_close(*grads, rtol=1e-4)
    assert other.step(1e-3, 1.0) == pytest.approx(one.step(1e-3, 1.0), rel=1e-4)
    for name, tensor in one.adapter().items():
        np.testing.assert_allclose(other.adapter()[name], tensor, atol=1e-5, rtol=0)


def test_the_optimiser_is_torchs(llama):
    import mlx.core as mx

    one, other = both(llama)
    noise = np.random.default_rng(1)
    for rate, bound in ((1e-3, 1.0), (1e-2, 1.0), (1e-2, 1e-3), (1e-2, 1e-3)):  # the last two are clipped
        given = {n: noise.normal(0, 1e-3, p.shape).astype(np.float32) for n, p in one.trained.items()}
        for name, p in one.trained.items():
            p.grad = torch.from_numpy(given[name].copy())
        other._gradient = {name: mx.array(array) for name, array in given.items()}
        assert other.step(rate, bound) == pytest.approx(one.step(rate, bound), rel=1e-5)
    for name, tensor in one.adapter().items():
        np.testing.assert_allclose(other.adapter()[name], tensor, atol=2e-6, rtol=0)
    assert_close(one.optimiser(), other.optimiser(), rtol=1e-5)


def test_micro_batches_add_up_to_the_batch(llama):
    other = mlx_policy(llama)
    whole = pack(ROWS)
    constants = terms(other, whole)
    other.backward(whole, constants, loss)
    at_once, other._gradient = other._gradient, {}
    ends = np.cumsum(whole.lengths)
    for row, end in zip(ROWS, ends, strict=True):
        part = slice(end - len(row.reply), end)
        other.backward(pack([row]), _part(constants, part), loss)
    assert_close(
        {n: np.array(a) for n, a in at_once.items()}, {n: np.array(a) for n, a in other._gradient.items()}, 1e-4
    )


def test_recomputed_gradients_are_the_same(llama, monkeypatch):
    one, _ = both(llama)
    monkeypatch.setattr("trainer.policy.mlx_policy.SHARE_OF_FREE_MEMORY", 0.0)
    _, other = both(llama)
    assert ("gradient_checkpointing", True) in [choice[:2] for choice in other.choices]
    assert "Recomputed" in type(other._model.whole.layers[0]).__name__
    _, *grads = gradients(one, other, pack(ROWS))
    assert_close(*grads, rtol=1e-4)
    prompts = [r.prompt for r in ROWS]
    kept = {"max_tokens": 8, "temperature": 0.0, "seed": 0}
    assert other.generate(prompts, **kept) == one.generate(prompts, **kept)


def test_a_reply_ends_at_every_end_that_somebody_names(tmp_path):
    """Token 0 is the config's, 2 the tokenizer's: the built-in server stops at both (test_ends)."""
    weights = tiny.make_model(tmp_path / "m")
    for name in ("config.json", "generation_config.json"):
        about = json.loads((weights / name).read_text())
        (weights / name).write_text(json.dumps(about | {"eos_token_id": 0}))
    replies = mlx_policy(weights).generate([(1, 50, 60)] * 16, max_tokens=300, temperature=1.5, seed=3)
    assert {reply[-1] for reply in replies if len(reply) < 300} == {0, 2}
    assert not any({0, 2} & {*reply[:-1]} for reply in replies)


def test_a_gradient_that_is_not_finite_changes_nothing(llama):
    _, other = both(llama)
    before = other.adapter()
    other.backward(pack(ROWS), terms(other, pack(ROWS)), lambda xp, theta, c: ((theta * xp.nan).sum(), {}))
    assert not math.isfinite(other.step(1e-2, 1.0))
    for name, tensor in other.adapter().items():
        np.testing.assert_array_equal(tensor, before[name])
    assert other.optimiser() == {}


@pytest.mark.model
def test_the_real_model_is_the_same_too(weights):
    one, other = both(weights)
    noise = np.random.default_rng(2)
    fresh = tiny.policy(weights).adapter()
    small = {n: t if "lora_A" in n else noise.normal(0, 0.01, t.shape).astype(np.float32) for n, t in fresh.items()}
    for policy in (one, other):
        policy.wear(small)
    template = Template(other.tokenizer)
    prompt = template.prompt([{"role": "user", "content": "What is the capital of France?"}])
    reply = template.reply("The capital of France is Paris, on the Seine.", ended=True)
    packed = pack([Tokens(prompt, reply, 0.8), Tokens(prompt[:9], prompt[9:])])
    np.testing.assert_allclose(other.log_probs(packed).plain, one.log_probs(packed).plain, atol=1e-4)
    (theirs, ours), *grads = gradients(one, other, packed)
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert_close(*grads, rtol=1e-3)  # thirty layers of rounding: 1e-4 on one kind of CPU, 3e-4 on another
    asked = {"max_tokens": 12, "temperature": 0.0, "seed": 0}
    greedy = other.generate([prompt, prompt[-9:]], **asked)
    assert greedy == one.generate([prompt, prompt[-9:]], **asked)


def test_sums_over_a_large_vocabulary_are_exact():
    import mlx.core as mx

    from trainer.policy import mlx_policy

    logits = np.random.default_rng(0).normal(0, 3, (20, 151_937)).astype(np.float32)
    exact = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    np.testing.assert_allclose(np.array(mlx_policy._logsumexp(mx.array(logits))), exact, atol=1e-5, rtol=0)
    few = np.where(np.arange(151_937) < 3, logits, -np.inf)  # whole blocks without anything in them
    exact = np.log(np.exp(few.astype(np.float64)).sum(-1))
    np.testing.assert_allclose(np.array(mlx_policy._logsumexp(mx.array(few))), exact, atol=1e-5, rtol=0)


# --- files ---


def test_a_saved_adapter_is_worn_by_torch(model, tmp_path):
    one, other = both(model)
    folders = [tmp_path / "torch", tmp_path / "mlx"]
    for policy, folder in zip((one, other), folders, strict=True):
        folder.mkdir()
        policy.save(folder)
    theirs, ours = map(tensors, folders)
    assert {n: (t.shape, t.dtype) for n, t in ours.items()} == {n: (t.shape, t.dtype) for n, t in theirs.items()}
    assert LoraConfig.from_pretrained(folders[1]).to_dict() == LoraConfig.from_pretrained(folders[0]).to_dict()
    assert {p.name for p in folders[1].iterdir()} == {p.name for p in folders[0].iterdir()}
    packed = pack(ROWS)
    expected = other.log_probs(packed).plain
    with one.wearing(folders[1]):
        np.testing.assert_allclose(one.log_probs(packed).plain, expected, atol=1e-4)
    warm = tiny.policy(model, parent=folders[1])
    np.testing.assert_allclose(warm.log_probs(packed).plain, expected, atol=1e-4)
    plain = AutoModelForCausalLM.from_pretrained(model)
    assert len(read_adapter("v1", folders[1], plain).pairs) == len(ours) / 2  # the built-in backend


def test_an_adapter_of_torch_goes_on_training(llama, tmp_path):
    one, _ = both(llama)
    (tmp_path / "v0001").mkdir()
    one.save(tmp_path / "v0001")
    packed = pack(ROWS)
    bare = mlx_policy(llama).log_probs(packed).plain
    other = mlx_policy(llama, parent=tmp_path / "v0001", rank=8)
    np.testing.assert_allclose(other.log_probs(packed).plain, one.log_probs(packed).plain, atol=1e-4)
    assert {("rank", 4), ("start", "v0001")} <= {choice[:2] for choice in other.choices}
    with other.wearing(None):
        np.testing.assert_allclose(other.log_probs(packed).plain, bare, atol=1e-6)
    before = other.log_probs(packed).plain
    other.backward(packed, terms(other, packed), loss)
    other.step(1e-2, 1.0)
    assert np.abs(other.log_probs(packed).plain - before).max() > 1e-3
    (tmp_path / "v0002").mkdir()
    other.save(tmp_path / "v0002")
    configs = [LoraConfig.from_pretrained(tmp_path / v).to_dict() for v in ("v0001", "v0002")]
    assert configs[0] == configs[1]


def test_any_lora_is_worn_and_taken_off_again(llama, tmp_path):
    one, other = both(llama)
    packed = pack(ROWS)
    own = other.log_probs(packed).plain
    modules = {"r": 2, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]}
    folder = random_adapter(llama, tmp_path / "few", seed=3, size=0.3, **modules)
    with one.wearing(folder), other.wearing(folder):
        worn = other.log_probs(packed).plain
        np.testing.assert_allclose(worn, one.log_probs(packed).plain, atol=1e-4)
    assert np.abs(worn - own).max() > 1e-2
    np.testing.assert_array_equal(other.log_probs(packed).plain, own)
    few = mlx_policy(llama, parent=folder)  # trains those, and no others
    assert len(few.adapter()) == 8
    with pytest.raises(AdapterError, match="missing"), other.wearing(tmp_path):
        pass
    np.testing.assert_array_equal(other.log_probs(packed).plain, own)


def test_a_new_adapter_changes_nothing_and_is_of_the_seed(llama):
    first, second = mlx_policy(llama).adapter(), mlx_policy(llama).adapter()
    torchs = tiny.policy(llama).adapter()
    for name, tensor in first.items():
        np.testing.assert_array_equal(tensor, second[name])
        assert tensor.shape == torchs[name].shape
        np.testing.assert_allclose(tensor.std(), torchs[name].std(), rtol=0.2)  # the same distribution


def test_a_quantised_base_trains_too(llama, tmp_path):
    from mlx_lm import convert

    convert(str(llama), str(tmp_path / "q4"), quantize=True, q_bits=4, q_group_size=32)
    convert(str(tmp_path / "q4"), str(tmp_path / "whole"), dequantize=True, dtype="float32")
    one, _ = both(tmp_path / "whole")
    other = mlx_policy(tmp_path / "q4")
    other.wear(one.adapter())
    packed = pack(ROWS)
    np.testing.assert_allclose(other.log_probs(packed).plain, one.log_probs(packed).plain, atol=1e-3)
    _, *grads = gradients(one, other, packed)
    assert_close(*grads, rtol=1e-3)
    (tmp_path / "v1").mkdir()
    other.save(tmp_path / "v1")
    with one.wearing(tmp_path / "v1"):
        np.testing.assert_allclose(one.log_probs(packed).plain, other.log_probs(packed).plain, atol=1e-3)


# --- refused, rather than wrong in silence ---


def test_rope_settings_that_mlx_lm_does_not_read_are_refused(llama, tmp_path):
    from shutil import copytree

    folder = copytree(llama, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"full_attention": config["rope_parameters"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="rope_parameters"):
        mlx_policy(folder)


def test_a_model_with_another_head_is_refused(llama, monkeypatch):
    monkeypatch.setattr("trainer.policy.mlx_model.logit_scaling", lambda config: lambda logits: logits * 1.5)
    with pytest.raises(ValueError, match="does not know"):
        mlx_policy(llama)


def test_of_a_mixture_of_experts_the_attention_trains(tmp_path):
    config = Qwen3MoeConfig(
        **SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
    )
    folder = save(tmp_path / "moe", Qwen3MoeForCausalLM, config)
    with pytest.raises(ValueError, match=r"num_experts.*train with torch"):  # transformers 5 has another name for it
        mlx_policy(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"num_experts": 4}))
    packed = pack(ROWS)
    other = mlx_policy(folder)
    before = other.log_probs(packed).plain
    np.testing.assert_allclose(before, tiny.policy(folder).log_probs(packed).plain, atol=1e-4)
    assert {name.split(".")[5] for name in other.adapter()} == {"self_attn"}
    assert ("layers", "k_proj o_proj q_proj v_proj") in [choice[:2] for choice in other.choices]
    for _ in range(3):
        other.backward(packed, terms(other, packed), loss)
        other.step(1e-2, 1.0)
    (tmp_path / "v1").mkdir()
    other.save(tmp_path / "v1")
    after = other.log_probs(packed).plain
    assert np.abs(after - before).max() > 1e-2
    np.testing.assert_allclose(tiny.policy(folder, parent=tmp_path / "v1").log_probs(packed).plain, after, atol=1e-4)


# --- replies ---


def test_greedy_replies_are_torchs(model):
    one, other = both(model)
    asked = {"max_tokens": 20, "temperature": 0.0, "seed": 0}
    prompts = [(1, 50, 60), (1, 51), (1, *range(40, 90)), (7,)]
    assert other.generate(prompts, **asked) == one.generate(prompts, **asked)


def test_replies_are_those_of_the_seed_and_end_at_the_end_token(llama):
    _, other = both(llama)
    prompts = [(1, 50 + i, 60) for i in range(16)]
    first = other.generate(prompts, max_tokens=60, temperature=1.0, seed=3)
    assert first == other.generate(prompts, max_tokens=60, temperature=1.0, seed=3)
    later = other.generate(prompts, max_tokens=60, temperature=1.0, seed=4)
    assert first != later
    seeds = [3] * 16 + [4] * 16
    assert other.generate(prompts * 2, max_tokens=60, temperature=1.0, seed=seeds) == first + later
    assert all(2 not in reply[:-1] for reply in first)
    ended = [reply for reply in first if reply[-1] == 2]
    assert 0 < len(ended) < 16
    assert {len(reply) for reply in first if reply[-1] != 2} == {60}


# --- whole runs ---


@pytest.fixture(scope="module")
def parent(llama, tmp_path_factory):
    """Version 1, trained by torch; both frameworks then start from the same weights."""
    lines = tiny.sample_lines(llama)
    folder = tiny.run_folder(tmp_path_factory.mktemp("first") / "run", llama, lines, framework="torch")
    assert go(folder)[0]["status"] == "passed"
    return folder.parent / "out" / "v0001"


@pytest.fixture(scope="module")
def second(llama, parent):
    """Makes the folder of a run that goes on from it."""
    lines = tiny.sample_lines(llama, version=1, adapter=parent, seed=5)
    spec = {"version": 2, "parent": 1, "adapters": {"1": str(parent)}, "overrides": {"passes": 3, "batch": 5}}
    return lambda folder, framework: tiny.run_folder(folder / "run", llama, lines, framework=framework, **spec)


def test_a_run_is_the_same_run_in_both(tmp_path, second):
    results, steps = {}, {}
    for framework in ("torch", "mlx"):
        results[framework], events = go(second(tmp_path / framework, framework))
        assert results[framework]["status"] == "passed", results[framework]
        assert framework in [e["value"] for e in of(events, "choice") if e["name"] == "framework"]
        steps[framework] = of(events, "step")
    assert len(steps["mlx"]) == len(steps["torch"]) == 6
    for ours, theirs in zip(steps["mlx"], steps["torch"], strict=True):
        for name in ("loss", "kl_ref", "kl_old", "grad_norm", "acceptance"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name
    assert steps["torch"][-1]["kl_old"] > 10 * steps["torch"][0]["kl_old"]  # there was something to track
    for name in ("margin", "text_nll", "no_op"):
        ours, theirs = (results[f]["gate"][name]["value"] for f in ("mlx", "torch"))
        assert ours == pytest.approx(theirs, abs=1e-3), name
    one, other = (tensors(tmp_path / f / "out" / "v0001") for f in ("torch", "mlx"))
    for name, tensor in one.items():
        np.testing.assert_allclose(other[name], tensor, atol=5e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize(("before", "after"), [("mlx", "mlx"), ("torch", "mlx"), ("mlx", "torch")])
def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path, second, before, after):
    whole = second(tmp_path / "a", after)
    go(whole)
    folder = second(tmp_path / "b", before)
    stop = Stop()
    with StopAfter(folder, stop, 3) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    spec = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(spec | {"framework": after}))
    result, events = go(folder)
    assert result["status"] == "passed"
    assert [e["step"] for e in of(events, "step")] == [4, 5, 6]
    one, other = (load_file(tmp_path / x / "out" / "v0001" / "adapter_model.safetensors") for x in "ab")
    for name, tensor in one.items():
        if before == after:
            np.testing.assert_array_equal(other[name], tensor)
        else:
            np.testing.assert_allclose(other[name], tensor, atol=5e-5, rtol=0)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["peft"] = None  # as on a Mac that has neither: an import of them fails
from pathlib import Path
from trainer import loop
from trainer.io.progress import Progress, Stop
folder = Path(sys.argv[1])
with Progress(folder, sys.stdout) as progress:
    print(loop.run(folder, progress, Stop())["reason"])
"""


def test_a_run_on_mlx_needs_no_torch(tmp_path, second):
    folder = second(tmp_path, "mlx")
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(folder)], capture_output=True, text=True)
    assert json.loads((folder / "result.json").read_bytes())["status"] == "passed", done.stdout + done.stderr
    told = [json.loads(line) for line in io.StringIO(done.stdout) if line.startswith("{")]
    assert told[-1]["status"] == "passed"


def test_a_teacher_says_the_same_and_teaches_the_same(model):
    """What a comment teaches: the teacher's likeliest tokens, and the gradient towards them."""
    one, other = both(model)
    packed = pack(ROWS)
    told, also = one.teach(packed, 5), other.teach(packed, 5)
    np.testing.assert_array_equal(also.ids, told.ids)
    np.testing.assert_allclose(also.log_probs, told.log_probs, atol=1e-4)
    apart = one.teach(packed, 5, [7, 9]), other.teach(packed, 5, [7, 9])
    assert all(set(row[:2].tolist()) == {7, 9} for each in apart for row in each.ids)
    np.testing.assert_array_equal(apart[1].ids[:, 2:], apart[0].ids[:, 2:])
    noise = np.random.default_rng(1).normal(0, 0.3, told.log_probs.shape)
    constants = dataclasses.replace(
        terms(one, packed),
        teaches=np.arange(len(packed.target)) % 2.0,
        stays=1 - np.arange(len(packed.target)) % 2.0,
        elsewhere=np.where(told.log_probs < -4, 0.5, 0.0),
        teacher_ids=told.ids,
        teacher=np.minimum(told.log_probs + noise - 1, -0.1),
    )
    weights = {"w_distill": 1.0, "w_stay": 2.0, "w_elsewhere": 0.7}
    combine = partial(losses.combine, **weights, kl_ref=0.3, guard_low=0.5, guard_high=2.0)
    sums = one.backward(packed, constants, combine), other.backward(packed, constants, combine)
    assert sums[1] == pytest.approx(sums[0], abs=1e-4)
    assert sums[0]["kl_teacher"] > 0.1 and sums[0]["kl_stay"] > 0.1
    theirs = {name: p.grad.numpy() for name, p in one.trained.items()}
    assert_close(theirs, {name: np.array(array) for name, array in other._gradient.items()}, 1e-4)


def test_restoring_nothing_is_a_fresh_optimiser(llama):
    """A second try must not remember the first."""
    _, policy = both(llama)
    packed = pack(ROWS)
    constants, before, after = terms(policy, packed), policy.adapter(), []
    for _ in range(2):
        for _ in range(2):
            policy.backward(packed, constants, loss)
            policy.step(1e-2, 1.0)
        after.append(policy.adapter())
        policy.backward(packed, constants, loss)  # of a step that is not taken
        policy.wear(before)
        policy.restore({})
    for name, array in after[0].items():
        np.testing.assert_allclose(after[1][name], array, atol=1e-6)
