"""A Hugging Face folder as an mlx-lm model whose linear layers can wear a LoRA.

Owns loading, the `MlxLora` layer, and the two ways through the model that mlx-lm has no name for. These are the trunk
without the head, and the head by itself, checked against the model's own logits. Not here: log-probs, training
(mlx_policy).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.utils import load_model
from safetensors import safe_open

from trainer.formats.model_info import is_router
from trainer.formats.peft_folder import LoraPair

Array = Any  # mx.array
HEAD = "lm_head"


class MlxLora(nn.Module):  # type: ignore[misc]  # mlx is Any where it is not installed
    """A frozen linear layer and what it wears. A and B lie as PEFT has them, so that no file needs transposing."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.linear = linear
        self.scale = 0.0

    def wear(self, pair: LoraPair | None) -> None:
        for name in ("lora_a", "lora_b"):
            self.pop(name, None)
        if pair is not None:
            self.lora_a, self.lora_b, self.scale = pair.a, pair.b, pair.scale  # (r, in), (out, r)

    @property
    def worn(self) -> LoraPair | None:
        return LoraPair(self.lora_a, self.lora_b, self.scale) if "lora_a" in self else None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        out, width = self.linear.weight.shape
        packed = isinstance(self.linear, nn.QuantizedLinear)
        return out, width * 32 // self.linear.bits if packed else width

    def __call__(self, x: Array) -> Array:
        y = self.linear(x)
        return y + (x @ self.lora_a.T @ self.lora_b.T) * self.scale if "lora_a" in self else y


class MlxModel:
    def __init__(self, weights: Path) -> None:
        raw = json.loads((weights / "config.json").read_bytes())
        try:  # code in a model's folder is never run: mlx-lm refuses it by default
            self.whole, self.config = load_model(weights, model_config=rope_settings(raw))
        except (TypeError, KeyError, ValueError, FileNotFoundError) as error:
            raise ValueError(f"mlx-lm cannot load {weights} ({error}): train with torch.") from error
        self._refuse_unread_rope(raw)
        self.whole.set_dtype(mx.float32)
        self.whole.freeze()
        self.trunk: Any = getattr(self.whole, "model", None)
        if not hasattr(self.trunk, "embed_tokens"):
            raise ValueError(f"mlx-lm's {self._kind} is built in a way that this trainer does not know.")
        self.linears = self._wrap(weights)
        self._scale_logits = logit_scaling(self.config)
        self._check_head()

    @property
    def _kind(self) -> str:
        return str(self.config.get("model_type"))

    def hidden(self, ids: Array) -> Array:
        """(B, S) -> (B, S, H). No mask is given: mlx-lm's own is causal, and padding is on the right."""
        return self.trunk(ids)

    @contextlib.contextmanager
    def halfway(self, change: Callable[[Array], Array]) -> Iterator[None]:
        """Inside it `change` gets what comes out of the middle layer, (B, S, H), and gives what goes on from there."""
        layer = self.whole.layers[(len(self.whole.layers) - 1) // 2]
        kind = type(layer)
        layer.__class__ = _with_output_changed(kind, change)
        try:
            yield
        finally:
            layer.__class__ = kind

    def head(self, hidden: Array) -> Array:
        """(…, H) -> (…, V) in fp32."""
        project = self.whole.get(HEAD, self.trunk.embed_tokens.as_linear)
        return self._scale_logits(project(hidden).astype(mx.float32))

    def recompute_layers(self) -> None:
        """In training keep only what goes into each layer, and compute the rest of it again on the way back."""
        for layer in self.whole.layers:
            layer.__class__ = _with_recomputation(type(layer))

    def _wrap(self, weights: Path) -> dict[str, MlxLora]:
        """Every linear layer but head and routers, by the name that transformers and PEFT have for it.

        Experts are one stacked tensor to mlx, so they are none of these.
        """
        linears = {
            path: MlxLora(module)
            for path, module in self.whole.named_modules()
            if isinstance(module, (nn.Linear, nn.QuantizedLinear))
            and path != HEAD
            and not is_router(path)  # linear to mlx, not to transformers
        }
        tensor_names = _tensor_names(weights)
        if unknown := sorted(path for path in linears if f"{path}.weight" not in tensor_names):
            raise ValueError(
                f"mlx-lm's {self._kind} has a linear layer {unknown[0]} that {weights} does not have: an adapter "
                "trained here could not be worn elsewhere; train with torch."
            )
        self.whole.update_modules(tree_unflatten(list(linears.items())))
        return linears

    def _refuse_unread_rope(self, raw: dict[str, Any]) -> None:
        nested = raw.get("rope_parameters") and "rope_theta" not in raw["rope_parameters"]
        if nested and not hasattr(getattr(self.whole, "args", None), "rope_parameters"):
            raise ValueError(
                f"mlx-lm's {self._kind} does not read the rope_parameters of this config.json, one set for each kind "
                "of layer, and would compute something else in silence; train with torch."
            )

    def _check_head(self) -> None:
        """The short way through the head must give the model's own logits; a model with another head is refused."""
        ids = mx.arange(2, 10)[None] % self.trunk.embed_tokens.weight.shape[0]
        logits = self.whole(ids).astype(mx.float32)  # (1, 8, V)
        gap = mx.abs(logits - self.head(self.hidden(ids))).max().item()
        if not gap <= 1e-3 * max(1.0, mx.abs(logits).max().item()):
            raise ValueError(
                f"mlx-lm's {self._kind} computes its logits in a way that this trainer does not know (they differ by "
                f"{gap:.3g}): log-probs would be wrong."
            )


def rope_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Members that most of mlx-lm's models want at the top level, from where transformers 5 writes it.

    Without this they take their own default for theta and compute garbage in silence.
    """
    rope = config.get("rope_parameters") or {}
    if "rope_theta" not in rope:
        return {}
    settings = {"rope_theta": rope["rope_theta"]}
    if "partial_rotary_factor" in rope:
        settings["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if rope.get("rope_type", "default") != "default":
        settings["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    return settings


def logit_scaling(config: dict[str, Any]) -> Callable[[Array], Array]:
    """A model's change of its logits after the head: nothing, a soft cap (Gemma 2), or one factor."""
    cap = config.get("final_logit_softcapping")
    if cap:
        return lambda logits: mx.tanh(logits / cap) * cap
    factor = (config.get("logit_scale") or 1.0) / (config.get("logits_scaling") or 1.0)
    return (lambda logits: logits * factor) if factor != 1.0 else (lambda logits: logits)


def _tensor_names(weights: Path) -> set[str]:
    names: set[str] = set()
    for path in weights.glob("model*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            names.update(file.keys())
    return names


def _with_output_changed(kind: Any, change: Callable[[Array], Array]) -> Any:
    class Changed(kind):  # type: ignore[misc]  # whatever this model's layers are
        def __call__(self, *args: Any, **kwargs: Any) -> Array:
            return change(super().__call__(*args, **kwargs))

    return Changed


def _with_recomputation(kind: Any) -> Any:
    class Recomputed(kind):  # type: ignore[misc]  # whatever this model's layers are
        def __call__(self, *args: Any, **kwargs: Any) -> Array:
            if not self.training:
                return super().__call__(*args, **kwargs)
            return nn.utils.checkpoint(self, super().__call__)(*args, **kwargs)

    return Recomputed
