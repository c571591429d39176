"""Replies of a model: one batch, and the next token of each row drawn by the seed of its part.

Owns the batch and the draw. transformers draws a whole batch from one stream of random numbers. So a row's reply would
depend on the rows beside it. Here each part of a batch has a stream of its own: several batches become one, and each
says what it says alone. Not here: which adapter the model wears (torch_policy), where a reply ends (eos).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from peft.tuners.lora import LoraLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from trainer.policy import eos
from trainer.policy.torch_pictures import PictureRows
from trainer.policy.torch_shards import no_gradient

BASE: Final = "__base__"  # peft's name of no adapter


class Part(NamedTuple):
    """Neighbouring rows with one stream."""

    rows: int
    seed: int


def parts_of(seeds: Sequence[int]) -> list[Part]:
    """`seeds`: one a row; neighbours with the same one are one part."""
    return [Part(len(list(rows)), seed) for seed, rows in itertools.groupby(seeds)]


class SeededDraws(LogitsProcessor):  # type: ignore[misc]
    """Leaves only the token that was drawn."""

    def __init__(self, parts: Sequence[Part], temperature: float, device: str) -> None:
        self._temperature = temperature
        ends = list(itertools.accumulate(part.rows for part in parts))
        self._parts = [
            (slice(end - part.rows, end), torch.Generator(device).manual_seed(part.seed))
            for part, end in zip(parts, ends, strict=True)
        ]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(B, S), (B, V) -> (B, V), −inf but for one token a row."""
        shares = (scores / self._temperature).softmax(-1)
        drawn = torch.cat(
            [torch.multinomial(shares[rows], 1, generator=generator) for rows, generator in self._parts]
        )  # (B, 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)


@contextlib.contextmanager
def mixed(model: torch.nn.Module, adapters: Sequence[str]) -> Iterator[None]:
    """Inside it each row of a batch wears its own adapter, by peft's name; BASE wears none. As peft's own option does
    it, which leaves its hooks behind where a layer refuses."""

    def name_adapters(layer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | {"adapter_names": list(adapters)}

    layers = [layer for layer in model.modules() if isinstance(layer, LoraLayer | AuxiliaryTrainingWrapper)]
    hooks = [layer.register_forward_pre_hook(name_adapters, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Replies:
    """Batches of a model's replies. `ends`: ids of end tokens; `is_shared`: the model is in several processes."""

    def __init__(self, model: Any, ends: Sequence[int], device: str, *, is_shared: bool) -> None:
        self._model = model
        self._ends = ends
        self._device = device
        self._is_shared = is_shared
        self.pictures: PictureRows | None = None

    def draw(
        self, prompts: Sequence[Sequence[int]], parts: Sequence[Part], max_tokens: int, temperature: float
    ) -> list[list[int]]:
        """One reply a prompt, with its end token where it ended."""
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._ends[0], device=self._device)  # (B, P), padded on the left
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        draws = [SeededDraws(parts, temperature, self._device)] if temperature > 0 else []
        with no_gradient():
            rows = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                **(self.pictures.companions(ids) if self.pictures else {}),
                max_new_tokens=max_tokens,
                pad_token_id=self._ends[0],
                do_sample=False,  # the next token is drawn before
                synced_gpus=self._is_shared,  # the others go on until the longest reply has ended
                logits_processor=LogitsProcessorList(draws),
            )[:, width:]  # (B, ≤ max_tokens)
        return [eos.until_end(row, self._ends) for row in rows.tolist()]
