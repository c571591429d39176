"""Layers that fetch their weights and AdamW on copies: the same numbers, and nothing is left where it should not be.

No GPU was there. On a CPU the copies are real ones, and results are compared to the bit. On torch's meta device, which
refuses to mix with others, a whole pass shows that each weight is fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from config import presets
from scripts.models import tiny as kinds
from tests.harness import tiny
from trainer.io.run_folder import RunError
from trainer.mis_po import Terms
from trainer.policy import torch_offload, torch_policy
from trainer.policy.packing import Tokens, pack
from trainer.policy.torch_policy import TorchPolicy

ROWS = [Tokens((1, 50, 60), (70, 80, 2)), Tokens((1, 50, 61), (71, 80, 9, 2))]


@pytest.fixture
def offloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU; the device stays the CPU."""
    monkeypatch.setattr(torch_offload, "applies", lambda device, *, in_4bit: (True, "a test"))


def open_policy(folder: Path, *, offload: bool) -> TorchPolicy:
    preset = presets.resolve("balanced", {"rank": 4, "alpha": 8})
    return TorchPolicy(folder, preset, parent=None, threads=1, seed=0, offload=offload)


def steps(policy: TorchPolicy, count: int = 3) -> list[float]:
    """Some steps of a run; the norms of their gradients."""
    packed = pack(ROWS)
    old = policy.log_probs(packed).plain
    ones = np.ones(len(old))
    terms = Terms(old, old, np.where(np.arange(len(old)) < 3, 1.0, -1.0), ones, ones / len(old))
    norms = []
    for _ in range(count):
        policy.backward(packed, terms, lambda xp, theta, t: (-(t.advantage * theta * t.share).sum(), {}))
        norms.append(policy.step(1e-2, 1.0))
    return norms


@pytest.mark.usefixtures("offloads")
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gemma3_text"])
def test_a_run_is_the_same_to_the_bit(kind: str, tmp_path: Path) -> None:
    folder = kinds.make(kind, tmp_path / "model")
    tiny.tokenizer().save_pretrained(folder)
    usual, offloaded = (open_policy(folder, offload=offload) for offload in (False, True))
    packed = pack(ROWS)
    assert (usual.log_probs(packed).plain == offloaded.log_probs(packed).plain).all()
    # Where layers are computed again, as they are there, and where they are kept.
    assert steps(usual) == steps(offloaded)
    assert not (usual.log_probs(packed).plain == offloaded.log_probs(packed).entropy).all()
    for name, tensor in usual.adapter().items():
        assert (tensor == offloaded.adapter()[name]).all()
    for name, tensor in usual.optimiser().items():
        assert (tensor == offloaded.optimiser()[name]).all()
    assert (usual.log_probs(packed).plain == offloaded.log_probs(packed).plain).all()
    prompts = [[1, 50, 60], [1, 51]]
    asked: dict[str, Any] = {"max_tokens": 6, "temperature": 0.8, "seed": 3}
    assert usual.generate(prompts, **asked) == offloaded.generate(prompts, **asked)


@pytest.mark.usefixtures("offloads")
def test_a_version_is_worn_and_a_checkpoint_goes_on(tmp_path: Path) -> None:
    folder = tiny.make_model(tmp_path / "model")
    usual, offloaded = (open_policy(folder, offload=offload) for offload in (False, True))
    steps(usual), steps(offloaded)
    (tmp_path / "v1").mkdir()
    usual.save(tmp_path / "v1")
    packed, results = pack(ROWS), []
    for policy in (usual, offloaded):
        adapter, optimiser = policy.adapter(), policy.optimiser()
        steps(policy)
        with policy.wearing(tmp_path / "v1"):
            results.append(policy.log_probs(packed).plain)
        policy.wear(adapter)  # as where a run resumes
        policy.restore(optimiser)
        steps(policy)
        results.append(policy.log_probs(packed).plain)
    assert (results[0] == results[2]).all() and (results[1] == results[3]).all()
    assert (results[0] != results[1]).any()


@pytest.mark.usefixtures("offloads")
def test_copies_of_weights_do_not_wait_for_the_way_back(tmp_path: Path) -> None:
    """Layers are computed again whatever is free: else each copy would be kept for its gradient."""
    policy = open_policy(tiny.make_model(tmp_path / "model"), offload=True)
    assert policy._plan.recomputes(1)
    copied = torch_offload._copy
    alive: list[Any] = []
    most = 0

    def watched(parameter: torch.Tensor, device: str) -> torch.Tensor:
        import weakref

        nonlocal most
        tensor = copied(parameter, device)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(ref() is not None for ref in alive))
        return tensor

    of_layer = len(
        torch_offload._frozen(next(m for m in policy.model.modules() if m.__class__.__name__ == "LlamaDecoderLayer"))
    )
    torch_offload._copy = watched
    try:
        steps(policy, 1)
    finally:
        torch_offload._copy = copied
    layers = policy._causal.config.num_hidden_layers
    assert len(alive) == of_layer * layers * 3  # ℓ_old, there, and back
    assert most <= of_layer  # of one layer at a time


@pytest.mark.parametrize("kind", ["llama", "olmo2", "gemma3_text", "gemma4_text", "phi3"])
def test_each_weight_is_fetched_there_and_back(kind: str, tmp_path: Path) -> None:
    """With a LoRA on attention, its layers computed again: a weight left on the CPU would be refused. Experts
    have no such pass: torch does not group products there."""
    model = AutoModelForCausalLM.from_pretrained(kinds.make(kind, tmp_path / "model"), dtype=torch.float32)
    attention = "qkv_proj" if kind == "phi3" else "o_proj"
    with torch_policy._peft():
        peft = get_peft_model(model, LoraConfig(r=4, target_modules=[attention], task_type="CAUSAL_LM"))
    before = {name: p.clone() for name, p in peft.named_parameters()}
    size = torch_offload.stay(peft, "meta")
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    peft.train()
    ids = torch.ones(1, 5, dtype=torch.long, device="meta")
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool, device="meta")
    output = peft(input_ids=ids, attention_mask=mask, use_cache=False)
    output.logits.sum().backward()
    assert output.logits.device.type == "meta" and model.get_input_embeddings().weight.device.type == "meta"
    for name, parameter in peft.named_parameters():
        if ".lora_" in name:
            assert parameter.device.type == "meta" and parameter.grad is not None
    on_cpu = {name: p for name, p in peft.named_parameters() if p.device.type == "cpu"}
    assert size == sum(p.nbytes for p in on_cpu.values()) > 0
    assert all("layers." in name and (p == before[name]).all() for name, p in on_cpu.items())


def test_a_cpu_has_nothing_to_offload_to_and_says_so(tmp_path: Path) -> None:
    policy = open_policy(tiny.make_model(tmp_path / "model"), offload=True)
    choice = next(choice for choice in policy.choices if choice[0] == "offload")
    assert choice == ("offload", False, "no GPU: all of a run is in the machine's memory")


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(RunError, match="do not go together: set one of them to false"):
        torch_offload.applies("cuda", in_4bit=True)
    assert torch_offload.applies("cuda", in_4bit=False)[0]
    with pytest.raises(RunError, match="names none: set it to false"):
        torch_offload.stay(torch.nn.Linear(2, 2), "cpu")
