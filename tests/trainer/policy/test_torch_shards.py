"""Weights of a model that several processes hold, before they are shared out."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.harness import tiny
from trainer.policy import torch_load
from trainer.policy.torch_shards import load_lazily


def test_weights_take_no_memory_until_their_layer_is_shared_out(tmp_path: Path) -> None:
    """Also where they are computed in a wider format: a whole model in that one was in each process."""
    model = tiny.make_model(tmp_path / "model", stored=torch.bfloat16)
    causal, waiting = load_lazily(model, torch.float32)
    whole = torch_load.load(model, "cpu", torch.float32, in_4bit=False)
    for (name, parameter), usual in zip(causal.named_parameters(), whole.parameters(), strict=True):
        assert parameter.dtype == torch.float32 and parameter.shape == usual.shape
        assert parameter.untyped_storage().nbytes() == 4, name
        assert waiting[parameter].dtype == torch.bfloat16
        assert torch.equal(waiting[parameter].float(), usual)
    for buffer, usual_buffer in zip(causal.buffers(), whole.buffers(), strict=True):
        assert buffer.dtype == usual_buffer.dtype and torch.equal(buffer, usual_buffer)
    assert causal.config.dtype == whole.config.dtype == torch.float32


def test_weights_in_the_format_of_their_file_are_only_mapped(tmp_path: Path) -> None:
    model = tiny.make_model(tmp_path / "model")
    for compute in (torch.float32, torch.bfloat16):
        causal, waiting = load_lazily(model, compute)
        assert not waiting and causal.model.norm.weight.dtype == compute
