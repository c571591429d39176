"""The base model on its device, in the number format that a run computes in.

Owns which format and why, loading in it (in 4 bits, too), and what is refused. Whatever it is, these stay in fp32: the
adapter with its optimiser, and everything from the head on. So no log-prob and no ratio is rounded to bf16. On a CPU
that multiplies faster in bf16, the steps and the gate round the products of frozen layers. What goes between layers
stays in fp32. What is compared with the server is computed in fp32 before.
Not here: the adapter (torch_policy), how memory is planned (footprint).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import BitsAndBytesConfig

from trainer.formats import model_class, model_code
from trainer.io.run_folder import Compute, RunError
from trainer.policy import torch_speed
from trainer.policy.footprint import WIDE

STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
MULTIPLIES_IN_BF16 = ("amx_bf16", "avx512_bf16")  # of torch.cpu.get_capabilities()


def find_device() -> tuple[str, str]:
    if torch.cuda.is_available():
        return "cuda", f"{torch.cuda.get_device_name()} found"
    return "cpu", "no CUDA found"


def choose_compute(setting: Compute, device: str) -> tuple[torch.dtype, str]:
    """The format of the base model's weights and activations, and why."""
    if setting == "bfloat16":
        return torch.bfloat16, "set (train.compute)"
    if setting == "float32":
        return torch.float32, "set (train.compute)"
    if device != "cuda":
        return torch.float32, "a CPU: as the built-in server"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "this GPU computes in it"
    return torch.float32, "this GPU has no bfloat16"


def load(weights: Path, device: str, compute: torch.dtype, *, in_4bit: bool, stored: torch.dtype | None = None) -> Any:
    """A causal model without dropout, with its parameters in the format `stored` where that is given. Raises RunError
    where 4 bits were asked for and cannot be had."""
    if in_4bit:
        causal = _in_4bit(weights, device, compute)
    else:
        with _parameters_in(stored or compute):
            causal = model_class.of(weights).from_pretrained(weights, dtype=compute, **model_code.options(weights))
        causal = causal.to(device)
    drop_nothing(causal)
    if getattr(causal.config, "attention_dropout", 0):
        causal.config.attention_dropout = 0.0
    if compute != torch.float32:
        _head_in_fp32(causal)
    causal.get_output_embeddings().register_forward_pre_hook(_in_one_piece)
    return causal


def stored_format(weights: Path) -> torch.dtype | None:
    """The format of all tensors in a model's files, in which loading only maps them; None where there are several."""
    formats = set()
    for file in weights.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            formats |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118  not a dict
    return STORED.get(formats.pop()) if len(formats) == 1 else None


@contextlib.contextmanager
def _parameters_in(format: torch.dtype) -> Iterator[None]:
    """Have parameters that are being loaded keep this format, whatever the model computes in. Buffers are not changed:
    some are computed as the model is made."""

    def keep(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
        if parameter is None or not parameter.is_meta or parameter.dtype == format:
            return None
        return torch.nn.Parameter(parameter.to(format))

    hook = register_module_parameter_registration_hook(cast(Any, keep))  # torch's type leaves out what it returns
    try:
        yield
    finally:
        hook.remove()


def products_in_bf16(setting: Compute, device: str) -> str | None:
    """Why the products of frozen layers are rounded though all else is fp32; None: they are not."""
    if setting != "auto" or device != "cpu":
        return None
    capability = next((name for name in MULTIPLIES_IN_BF16 if torch.cpu.get_capabilities().get(name)), None)
    if capability is None or not (speed := torch_speed.measure_products()).rounding_pays:
        return None
    return f"this CPU has {capability} and multiplies {speed.share:.1f} times as fast so; all else stays in float32"


def round_products(model: torch.nn.Module, head: torch.nn.Module) -> int:
    """Let every wide frozen layer multiply in bf16; how many. The head with all it wears, adapters and whatever trains
    stay as they are."""
    head_layers = set(head.modules())
    wide = [
        name
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear
        and layer not in head_layers
        and ".lora_" not in name
        and not any(p.requires_grad for p in layer.parameters())
        and min(layer.weight.shape) >= WIDE
    ]
    for name in wide:  # by name: each one's fp32 weights go before the next one is rounded
        model.set_submodule(name, Bf16Linear(cast(torch.nn.Linear, model.get_submodule(name))))
    return len(wide)


class Bf16Linear(torch.nn.Linear):
    """A frozen layer whose product is computed in bf16, of fp32 and into fp32. Gradients pass through it likewise."""

    def __init__(self, of: torch.nn.Linear) -> None:
        with torch.device("meta"):
            super().__init__(of.in_features, of.out_features, bias=False)
        self.weight = torch.nn.Parameter(of.weight.detach().bfloat16(), requires_grad=False)
        if of.bias is not None:
            self.bias = torch.nn.Parameter(of.bias.detach(), requires_grad=False)

    def forward(self, entering: Tensor) -> Tensor:
        product = torch.nn.functional.linear(entering.bfloat16(), self.weight).float()
        return product if self.bias is None else product + self.bias


def body(causal: Any) -> Any:
    """The model below its head. Some name that otherwise than their own class says (Llama 4's text part)."""
    candidates = (causal.base_model, causal.get_decoder(), getattr(causal, "model", None))
    return next(module for module in candidates if module is not None and module is not causal)


def drop_nothing(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def _in_4bit(weights: Path, device: str, compute: torch.dtype) -> Any:
    """nf4 with its scales quantised again, as QLoRA has it. Written after transformers' and peft's documentation; no
    machine with a GPU has run it."""
    if device != "cuda":
        raise RunError("train.load_in_4bit needs an NVIDIA GPU, and torch finds none here: set it to false.")
    if find_spec("bitsandbytes") is None:
        raise RunError("train.load_in_4bit needs bitsandbytes: pip install 'rlproxy[quant]', or set it to false.")
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
    # Not peft's prepare_model_for_kbit_training: it makes embeddings and norms fp32, which needs memory for nothing
    # (norms compute in fp32 anyway), and turns recomputation on, which footprint decides. peft freezes the base.
    return model_class.of(weights).from_pretrained(
        weights,
        dtype=compute,
        quantization_config=quantised,
        device_map={"": torch.cuda.current_device()},
        **model_code.options(weights),
    )


def _head_in_fp32(causal: Any) -> None:
    """Its own copy of the weights where the embeddings are the same ones."""
    head = causal.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().float(), requires_grad=False)
    if getattr(head, "bias", None) is not None:
        head.bias = torch.nn.Parameter(head.bias.detach().float(), requires_grad=False)
    head.register_forward_pre_hook(_as_float)


def _as_float(head: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(argument.float() for argument in arguments)


def _in_one_piece(head: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copy a slice, like the last token of each row: torch multiplies each of its rows by a copy of the whole head."""
    return tuple(argument.contiguous() for argument in arguments)
