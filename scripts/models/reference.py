"""A tiny model with a random adapter by transformers and PEFT: what each server is compared with.

Owns the adapter, on the layers that a run would train for that server. The measure is the largest difference of a
log-prob of the next token, in nats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.harness.lora import peft_on_transformers
from scripts.models import tiny
from trainer.formats import model_info
from trainer.io.run_folder import ServerFormat
from trainer.policy import autoscale

PROMPTS: Final = tuple([100 + 7 * n for n in range(1, length)] for length in (5, 12, 30))
LIKELIEST: Final = 20


class Comparison(NamedTuple):
    """Largest differences of a log-prob, in nats."""

    kind: str
    base: float  # served without an adapter, against transformers
    adapter: float  # served with it, against PEFT
    effect: float  # of the adapter, by PEFT
    served_effect: float  # of the adapter, at the server
    layers: tuple[str, ...]  # last names of those that wear it
    left_out: tuple[str, ...]


class Reference(NamedTuple):
    """The log-probs that a server has to agree with, (V,) for each prompt."""

    kind: str
    original: Sequence[Any]
    adapted: Sequence[Any]
    layers: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def make(cls, kind: str, base: Path, adapter: Path, server_format: ServerFormat) -> Reference:
        """Write a random adapter for the model in `base`, and compute both."""
        model, layers, left_out = make_adapter(base, adapter, server_format)
        adapted = by_peft(model)
        with model.disable_adapter():
            original = by_peft(model)
        return cls(kind, original, adapted, last_names(layers), last_names(left_out))

    def compare(self, served: Sequence[dict[int, float]], served_adapted: Sequence[dict[int, float]]) -> Comparison:
        """With the server's log-probs of its likeliest tokens, after each prompt."""
        pairs = zip(self.original, self.adapted, strict=True)
        return Comparison(
            self.kind,
            distance(self.original, served),
            distance(self.adapted, served_adapted),
            max(float((a - b).abs().max()) for a, b in pairs),
            distance(self.original, served_adapted),
            self.layers,
            self.left_out,
        )


def row(reference: Reference, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's answer as the table has it: the differences, or why there are none."""
    names = {"layers": list(reference.layers), "left_out": list(reference.left_out)}
    model_class = {"class": answer["class"]} if answer.get("class") else {}
    if "error" in answer:
        return {"kind": reference.kind, "error": answer["error"], **names}
    plain = _by_token(answer["plain"])
    if "refusal" in answer:
        base = distance(reference.original, plain)
        return {"kind": reference.kind, "base": base, "refusal": answer["refusal"], **names, **model_class}
    return reference.compare(plain, _by_token(answer["adapted"]))._asdict() | model_class


def _by_token(answers: Sequence[Mapping[str, float]]) -> list[dict[int, float]]:
    return [{int(token): value for token, value in each.items()} for each in answers]


def make_adapter(
    base: Path, folder: Path, server_format: ServerFormat, *, only: Sequence[str] = ()
) -> tuple[Any, list[str], list[str]]:
    """A random LoRA on each layer that a run would train for this server; the model with it, and the layers with and
    without. `only`: last names."""
    import torch
    from peft import LoraConfig, get_peft_model

    from trainer.formats import model_class
    from trainer.formats.lora_files import save_adapter

    model = model_class.of(base).from_pretrained(base, dtype=torch.float32)
    linears = list(tiny.linear_layers(model))
    is_part = model_info.part_that_writes(base, [name for name, _ in model.named_modules()])
    trainable, _ = autoscale.trained_layers(linears, "auto", model_info.read(base))
    worn, _ = autoscale.worn_layers(trainable, json.loads((base / "config.json").read_bytes()), server_format)
    targets = [name for name in worn if not only or name.rpartition(".")[2] in only]
    with peft_on_transformers():
        adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.15, generator=generator)
    folder.mkdir(parents=True)
    save_adapter(adapted, "default", folder, base_name=base.name, is_part=is_part)
    return adapted.eval(), targets, [name for name in trainable if name not in targets]


def last_names(layers: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[2] for name in layers}))


def by_peft(model: Any) -> list[Any]:
    import torch

    with torch.no_grad():
        return [torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1) for ids in PROMPTS]


def distance(log_probs: Sequence[Any], served: Sequence[dict[int, float]]) -> float:
    pairs = zip(log_probs, served, strict=True)
    return max(abs(float(row[token]) - value) for row, tokens in pairs for token, value in tokens.items())
