"""A PEFT folder with a LoRA in it, without torch or peft: read with every shape checked, and written.

Owns adapter_config.json and the names and shapes in adapter_model.safetensors. The arrays are whoever's reads them:
`load` and `finite` come from the framework. Not here: what is done with the matrices (lora_rows serves, mlx_policy
trains), torch's own way of writing the same folder (lora_files).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from config.re2_patterns import TextPattern
from trainer.formats.manifest import MANIFEST, AdapterError, verify

PREFIX = "base_model.model."
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
# Kinds of LoRA that are more than B·A on a linear layer. Taken for plain LoRA they would be wrong in silence.
_UNKNOWN_KINDS = (
    "use_dora", "use_qalora", "lora_bias", "layer_replication", "modules_to_save", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "corda_config", "velora_config",
)  # fmt: skip
# These start by changing the base weights, which must stay as they are.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One linear layer's LoRA: y += scale · x Aᵀ Bᵀ."""

    a: Any  # (r, in)
    b: Any  # (out, r)
    scale: float


@dataclass(frozen=True, slots=True)
class Lora:
    config: dict[str, Any]  # adapter_config.json
    pairs: dict[str, LoraPair]  # by the name of the linear layer


def read(
    folder: Path,
    shapes: Mapping[str, tuple[int, int]],
    load: Callable[[str], dict[str, Any]],
    finite: Callable[[Any], bool],
) -> Lora:
    """`shapes`: (out, in) of the model's linear layers. Raises AdapterError for whatever it cannot wear exactly."""
    if (folder / MANIFEST).exists():
        verify(folder)
    config = _read_config(folder / "adapter_config.json")
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise AdapterError(f"{path} is missing; only safetensors are loaded, never pickled weights.")
    try:
        tensors = load(str(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    sides: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if not match:
            raise AdapterError(f"{path} holds {key}, which is not a LoRA matrix of a linear layer.")
        if match["module"] not in shapes:
            raise AdapterError(f"{path} is for another model: this one has no linear layer {match['module']}.")
        if not finite(tensor):
            raise AdapterError(f"{path} holds values that are not finite, in {key}.")
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    if not sides:
        raise AdapterError(f"{path} holds no LoRA matrices.")
    return Lora(config, {module: _pair(path, module, pair, shapes[module], config) for module, pair in sides.items()})


def new_config(modules: Sequence[str], *, rank: int, alpha: float) -> dict[str, Any]:
    """adapter_config.json of a fresh LoRA on these linear layers. What is left out has PEFT's default."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }


def write_config(folder: Path, config: Mapping[str, Any], *, base_name: str) -> None:
    """For serving, and with no path of this machine in it."""
    whole = {**config, "base_model_name_or_path": base_name, "inference_mode": True}
    text = json.dumps(whole, indent=2, sort_keys=True)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise AdapterError(f"{path} is missing.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{path} is not the configuration of a LoRA adapter.")
    for kind in _UNKNOWN_KINDS:
        if config.get(kind):
            raise AdapterError(f"{path} sets {kind}, which rlproxy does not know.")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterError(f"{path} has init_lora_weights {start!r}, which changes the base model; convert it first.")
    return config


def _pair(path: Path, module: str, pair: dict[str, Any], shape: tuple[int, int], config: dict[str, Any]) -> LoraPair:
    if set(pair) != {"A", "B"}:
        raise AdapterError(f"{path} has only one of lora_A and lora_B for {module}.")
    a, b = pair["A"], pair["B"]
    rank = a.shape[0]
    expected = (rank, shape[1]), (shape[0], rank)
    if (tuple(a.shape), tuple(b.shape)) != expected:
        raise AdapterError(
            f"{path} does not fit this model: {module} has A {tuple(a.shape)} and B {tuple(b.shape)}, "
            f"expected {expected[0]} and {expected[1]}."
        )
    try:
        alpha = float(_by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha")))
        stated = int(_by_pattern(config.get("rank_pattern"), module, config.get("r")))
    except (TypeError, ValueError):
        raise AdapterError(f"{path.parent}/adapter_config.json has no usable r and lora_alpha.") from None
    if stated != rank or not math.isfinite(alpha):
        raise AdapterError(f"{path} has rank {rank} for {module}, its adapter_config.json says {stated}.")
    return LoraPair(a, b, alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def _by_pattern(patterns: Any, module: str, default: Any) -> Any:
    """PEFT's rule: the first pattern that matches the end of the module's name."""
    for pattern, value in (patterns or {}).items():
        if TextPattern(rf"(?:.*\.)?(?:{pattern})").fullmatch(module):
            return value
    return default
