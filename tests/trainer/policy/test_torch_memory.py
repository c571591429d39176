import ctypes

import numpy as np
import psutil
import pytest
import torch

from tests.harness import tiny
from trainer.mis_po import Terms
from trainer.policy.packing import UNRELATED, Tokens, pack
from trainer.policy.torch_memory import COMFORTABLE, HOARD, SMALL, FreedMemory, MemoryPlan, is_out_of_memory


class Config:
    num_hidden_layers, hidden_size, intermediate_size = 30, 576, 1536


def free(monkeypatch, size):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": size}))


def test_a_small_machine_recomputes_earlier_and_takes_less_at_once(monkeypatch):
    plans = []
    for gigabytes in (1, 8, 128):
        free(monkeypatch, gigabytes << 30)
        plans.append(MemoryPlan.of(Config, "cpu", max_seq_len=4096))
    assert [p.largest_kept for p in plans] == sorted(p.largest_kept for p in plans)
    assert [p.largest_hoarding for p in plans] == sorted(p.largest_hoarding for p in plans)
    assert plans[0].is_tight(plans[0].largest) and not plans[2].is_tight(plans[2].largest)
    assert plans[0].largest < plans[1].largest == plans[2].largest == 4 * 4096
    assert plans[0].recomputes(plans[0].largest)
    assert not plans[0].recomputes(plans[0].largest_kept)


def test_on_a_cpu_no_more_than_is_comfortable_is_kept_however_much_is_free(monkeypatch):
    free(monkeypatch, 128 << 30)
    plan = MemoryPlan.of(Config, "cpu", max_seq_len=4096)
    assert 650 < plan.largest_kept < 850  # of SmolLM2's tokens in two GiB
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (128 << 30, 128 << 30))
    assert not (gpu := MemoryPlan.of(Config, "cuda", max_seq_len=4096)).recomputes(gpu.largest)
    assert plan.unrelated == SMALL < gpu.unrelated == UNRELATED


def test_without_memory_one_sequence_still_gets_its_try(monkeypatch):
    free(monkeypatch, 0)
    assert MemoryPlan.of(Config, "cpu", max_seq_len=4096).largest == UNRELATED


def test_the_estimate_is_above_what_is_kept_and_not_far_above(tmp_path, monkeypatch):
    """Every tensor that autograd keeps for the backward pass, counted once each."""
    free(monkeypatch, 8 << 30)
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_a_hoard_is_given_back_once_it_is_large():
    psutil.heap_trim()  # what earlier tests have freed: into that these blocks would fit, and nothing would grow
    hoard, resident = FreedMemory(), psutil.Process().memory_info
    blocks = [b"x" * 60_000 for _ in range(4000)]  # below what glibc maps by itself
    del blocks[::2], blocks[::2]  # holes: three of four, and those that are left keep the heap from ending earlier
    held = resident().rss
    hoard.give_back()
    assert resident().rss > held - (20 << 20)  # 180 MB are not much
    hoard.give_back(most=64 << 20)
    assert resident().rss < held - (100 << 20)
    assert len(blocks) == 1000


def test_what_is_hoarded_is_planned_for(monkeypatch):
    free(monkeypatch, int(HOARD / 0.6))
    assert MemoryPlan.of(Config, "cpu", max_seq_len=4096).largest_hoarding == 0


def test_a_recomputed_pass_looks_at_its_hoard_layer_by_layer(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.policy.torch_memory.COMFORTABLE", 0)
    looks = []
    monkeypatch.setattr(FreedMemory, "give_back", lambda self: looks.append(1))
    policy = tiny.policy(tiny.make_model(tmp_path))
    packed = pack([Tokens((1, 50, 60), (70, 80, 2))])
    old = policy.log_probs(packed).plain
    assert not looks
    terms = Terms(old, old, np.ones(3), np.ones(3), np.ones(3))
    policy.backward(packed, terms, lambda xp, theta, t: ((t.advantage * theta).sum(), {}))
    assert len(looks) == 2 * policy._causal.config.num_hidden_layers  # there and back


def test_running_out_is_known_by_what_torch_says():
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 50)
    assert is_out_of_memory(found.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
