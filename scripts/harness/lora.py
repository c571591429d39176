"""A LoRA adapter as PEFT writes it, with random weights that change what the model says."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM


@contextlib.contextmanager
def peft_on_transformers() -> Iterator[None]:
    """peft 0.21 reads an attribute that transformers 5.23 has renamed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def random_adapter(weights: Path, folder: Path, *, seed: int, size: float = 0.03, **config: Any) -> Path:
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    defaults = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    with peft_on_transformers():
        peft = get_peft_model(model, LoraConfig(**{**defaults, **config}))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, size, generator=generator)
    peft.save_pretrained(folder, save_embedding_layers=False)
    return folder
