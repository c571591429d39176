"""What a model takes, beside what real models, adapters, caches, and files take."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from scripts.harness import large_llama
from scripts.models import published
from tests.harness import tiny
from trainer.formats import gguf, model_shape
from trainer.mis_po import Terms
from trainer.policy import torch_load, torch_policy
from trainer.policy.footprint import (
    COMFORTABLE,
    HOARD,
    SMALL,
    TRAINED_BYTES,
    UNRELATED,
    MemoryPlan,
    adapter_bytes,
    adapter_parameters,
    cache_bytes,
    file_bytes,
    linear_parameters,
    micro_batch,
    most_merged_bytes,
    token_bytes,
    weights_bytes,
)
from trainer.policy.packing import Tokens, pack

ROOT = Path(__file__).resolve().parents[3]

SMOL = token_bytes(30, 576, 1536)  # SmolLM2 135M


def test_a_small_machine_recomputes_earlier_and_takes_less_at_once():
    plans = []
    for gigabytes in (1, 8, 128):
        plans.append(MemoryPlan.of(SMOL, "cpu", gigabytes << 30, max_seq_len=4096))
    assert [p.largest_kept for p in plans] == sorted(p.largest_kept for p in plans)
    assert [p.largest_hoarding for p in plans] == sorted(p.largest_hoarding for p in plans)
    assert plans[0].is_tight(plans[0].largest) and not plans[2].is_tight(plans[2].largest)
    assert plans[0].largest < plans[1].largest == plans[2].largest == 4 * 4096
    assert plans[0].recomputes(plans[0].largest)
    assert not plans[0].recomputes(plans[0].largest_kept)


def test_on_a_cpu_no_more_than_is_comfortable_is_kept_however_much_is_free():
    plan = MemoryPlan.of(SMOL, "cpu", 128 << 30, max_seq_len=4096)
    assert 650 < plan.largest_kept < 850  # of SmolLM2's tokens in two GiB
    assert not (gpu := MemoryPlan.of(SMOL, "cuda", 128 << 30, max_seq_len=4096)).recomputes(gpu.largest)
    assert plan.unrelated == SMALL < gpu.unrelated == UNRELATED


def test_without_memory_one_sequence_still_gets_its_try():
    assert MemoryPlan.of(SMOL, "cpu", 0, max_seq_len=4096).largest == UNRELATED


def test_the_estimate_is_above_what_is_kept_and_not_far_above(tmp_path, monkeypatch):
    """Every tensor that autograd keeps for the backward pass, counted once each."""
    monkeypatch.setattr(torch_policy, "free_bytes", lambda device: 8 << 30)
    policy = tiny.policy(tiny.make_model(tmp_path), rank=4)
    kept = {}

    def count(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ids = torch.arange(3, 203)[None]
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        policy._causal.base_model(input_ids=ids, use_cache=False)
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    each = sum(size for at, (size, _) in kept.items() if at not in weights) / ids.numel()
    estimate = COMFORTABLE / policy._plan.largest_kept
    assert each < estimate < 2.5 * each


def test_what_is_hoarded_is_planned_for():
    assert MemoryPlan.of(SMOL, "cpu", int(HOARD / 0.6), max_seq_len=4096).largest_hoarding == 0


# --- weights, adapters, caches: the formulas beside real ones ------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make_model(tmp_path_factory.mktemp("model"), hidden_size=128, intermediate_size=320, vocab_size=1000)


def tensor_bytes(model):
    """Of each storage once."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_what_is_loaded(tied, tmp_path):
    folder = tiny.make_model(tmp_path, tie_word_embeddings=tied, hidden_size=320, intermediate_size=512)
    shape = model_shape.read(folder)
    for store, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        causal = torch_load.load(folder, "cpu", dtype, in_4bit=False)
        assert weights_bytes(shape, store) == pytest.approx(tensor_bytes(causal), rel=0.001)
    causal = torch_load.load(folder, "cpu", torch.float32, in_4bit=False)
    for parameter in causal.parameters():
        parameter.requires_grad = False
    assert torch_load.round_products(causal, causal.get_output_embeddings()) == 7 * 2 - 4  # k and v are too narrow
    assert weights_bytes(shape, "rounded") == pytest.approx(tensor_bytes(causal), rel=0.05)


def test_four_bits_leave_embeddings_head_and_stacked_experts(tmp_path):
    dense = model_shape.read(published.write("8B", tmp_path))
    linear = 36 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288)
    embeddings, head = 151936 * 4096, 151936 * 4096
    assert linear_parameters(dense) == linear
    # 4.127 bits: 6 GB of layers; embeddings in 16 bits, the head in 32
    assert weights_bytes(dense, "4 bits") == pytest.approx(linear * 4.127 / 8 + 2 * embeddings + 4 * head, rel=0.001)
    mixture = model_shape.read(published.write("30B-A3B", tmp_path))
    experts = 48 * 128 * 3 * 2048 * 768
    assert weights_bytes(mixture, "4 bits") > 2 * experts


def test_an_adapter_and_what_trains_it(folder, tmp_path):
    """The file, and every tensor of parameters, gradients and the optimiser."""
    policy = tiny.policy(folder, rank=4)
    shape = model_shape.read(folder)
    numbers = adapter_parameters(shape.linears, 4)
    assert numbers == sum(p.numel() for p in policy.trained.values())
    packed = pack([Tokens((1, 50, 60), (70, 80, 2))])
    old = policy.log_probs(packed).plain
    policy.backward(
        packed,
        Terms(old, old, np.ones(3), np.ones(3), np.ones(3)),
        lambda xp, theta, t: ((t.advantage * theta).sum(), {}),
    )
    gradients = sum(p.grad.nbytes for p in policy.trained.values())
    policy.step(1e-3, 1.0)
    moments = sum(array.nbytes for name, array in policy.optimiser().items() if not name.startswith("step"))
    parameters = sum(p.nbytes for p in policy.trained.values())
    assert TRAINED_BYTES * numbers == parameters + gradients + moments
    (tmp_path / "adapter").mkdir()
    policy.save(tmp_path / "adapter")
    size = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    assert adapter_bytes(numbers) == pytest.approx(size, rel=0.05)  # and a header
    gguf.convert(tmp_path / "adapter", folder, tmp_path / "adapter.gguf")
    assert adapter_bytes(numbers) == pytest.approx((tmp_path / "adapter.gguf").stat().st_size, rel=0.05)


def test_the_cache_is_that_of_transformers(folder):
    shape = model_shape.read(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cache = model(input_ids=torch.ones(1, 70, dtype=torch.long), use_cache=True).past_key_values
    assert cache_bytes(shape, 70, 4) == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def test_a_window_bounds_the_cache(tmp_path):
    shape = model_shape.read(published.write("31B", tmp_path))
    short, long = cache_bytes(shape, 1024), cache_bytes(shape, 131_072)
    assert short == 2 * 1024 * (50 * 2 * 16 * 256 + 10 * 2 * 4 * 512)
    assert long - short == 2 * (131_072 - 1024) * 10 * 2 * 4 * 512


@pytest.mark.parametrize("name", ["1B", "3B"])
def test_versions_are_as_large_as_real_servers_keep_them(name, tmp_path):
    """Of models of this size, Q4_0, that real servers took, when layers that changed were in Q8_0
    (scripts/bench/versions.py)."""
    measured = json.loads((ROOT / "benchmarks" / "versions.json").read_text())[f"{name} Q4_0"]
    large_llama.as_weights(tmp_path / "model", large_llama.SHAPES[name], 49152)
    shape = model_shape.read(tmp_path / "model")
    assert file_bytes(shape, 4.5) == pytest.approx(measured["whole"]["model_bytes"], rel=0.02)
    assert most_merged_bytes(shape, shape.linears, 4.5) == pytest.approx(measured["whole"]["bytes_of_one"], rel=0.02)
    if "llama-server" in measured:
        adapter = adapter_bytes(adapter_parameters(shape.linears, 16))
        assert adapter == pytest.approx(measured["llama-server"]["bytes_of_one"], rel=0.02)


@pytest.mark.parametrize(("tokens", "largest", "expected"), [(100, 256, 200), (300, 256, 300), (256, 640, 512)])
def test_a_micro_batch_takes_as_many_sequences_as_fit_and_always_one(tokens, largest, expected):
    plan = MemoryPlan(10_000, largest, 10_000, 10_000, "", "")
    assert micro_batch(tokens, plan) == expected
