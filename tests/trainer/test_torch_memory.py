import psutil
import pytest
import torch

from tests.trainer import tiny
from trainer.packing import UNRELATED
from trainer.torch_memory import COMFORTABLE, Plan, is_out_of_memory


class Config:
    num_hidden_layers, hidden_size, intermediate_size = 30, 576, 1536


def free(monkeypatch, size):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": size}))


def test_a_small_machine_recomputes_earlier_and_takes_less_at_once(monkeypatch):
    plans = []
    for gigabytes in (1, 8, 128):
        free(monkeypatch, gigabytes << 30)
        plans.append(Plan.of(Config, "cpu", max_seq_len=4096))
    assert [p.kept for p in plans] == sorted(p.kept for p in plans)
    assert [p.roomy for p in plans] == sorted(p.roomy for p in plans)
    assert plans[0].is_tight(plans[0].largest) and not plans[2].is_tight(plans[2].largest)
    assert plans[0].largest < plans[1].largest == plans[2].largest == 4 * 4096
    assert plans[0].recomputes(plans[0].largest)
    assert not plans[0].recomputes(plans[0].kept)


def test_on_a_cpu_no_more_than_is_comfortable_is_kept_however_much_is_free(monkeypatch):
    free(monkeypatch, 128 << 30)
    plan = Plan.of(Config, "cpu", max_seq_len=4096)
    assert 650 < plan.kept < 850  # of SmolLM2's tokens in two GiB
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (128 << 30, 128 << 30))
    assert not (gpu := Plan.of(Config, "cuda", max_seq_len=4096)).recomputes(gpu.largest)


def test_without_memory_one_sequence_still_gets_its_try(monkeypatch):
    free(monkeypatch, 0)
    assert Plan.of(Config, "cpu", max_seq_len=4096).largest == UNRELATED


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
    estimate = COMFORTABLE / policy._plan.kept
    assert each < estimate < 2.5 * each


def test_running_out_is_known_by_what_torch_says():
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 50)
    assert is_out_of_memory(found.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
