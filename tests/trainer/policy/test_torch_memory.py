import ctypes

import numpy as np
import psutil
import pytest
import torch

from tests.harness import tiny
from trainer.mis_po import Terms
from trainer.out_of_memory import is_out_of_memory
from trainer.policy.packing import Tokens, pack
from trainer.policy.torch_memory import FreedMemory


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


def test_a_recomputed_pass_looks_at_its_hoard_layer_by_layer(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.policy.footprint.COMFORTABLE", 0)
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
