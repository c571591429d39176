"""Pictures as a model reads them: rows in the place of embeddings, computed once and without a gradient.

Owns these rows, and how they get into a pass. The vision tower and the connector are frozen, so what they give for a
picture stays the same for the whole run. The model's own forward pass computes it: its text part is watched for what
enters, and not run. From there on a picture is a stretch of a longer prompt. That all this gives what the model gives
by itself is proved before a sample trains. Not here: which ids are pictures (pictures.album), the layout of a batch
(torch_policy).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.pictures.album import Album
from trainer.pictures.pixels import BadPicture
from trainer.pictures.processor import Expansion
from trainer.policy import torch_load
from trainer.policy.packing import Tokens

PROOF = {torch.float32: 1e-3, torch.bfloat16: 5e-2}  # as tree_attention's, relative
LOOKS_AHEAD = "token_type_ids"  # what a model takes whose pictures see themselves whole (Gemma 3)


class _TextPartReached(Exception):
    """The forward pass has come to the text part."""


class PictureReader:
    """The frozen parts of a loaded model that see."""

    def __init__(self, causal: Any, device: Any) -> None:
        self._causal = causal
        self._device = device
        # Where its pieces see those after them, a tree of prefixes is not the model's attention.
        self.looks_ahead = LOOKS_AHEAD in inspect.signature(torch_load.body(causal).forward).parameters

    def rows(self, inputs: dict[str, Any], expansion: Expansion) -> Tensor:
        """(pieces, H) of a picture by itself. `inputs`: as a processor makes them. Raises BadPicture."""
        ids = [int(id) for id in inputs["input_ids"][0]]
        start = ids.index(expansion.ids[0])
        entering: list[Tensor] = []

        def stop(part: torch.nn.Module, arguments: Any, options: dict[str, Any]) -> None:
            entering.append(options["inputs_embeds"])
            raise _TextPartReached

        watch = self._causal.get_decoder().register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with contextlib.suppress(_TextPartReached):
                torch_load.body(self._causal)(**self._on_device(inputs), use_cache=False)
        finally:
            watch.remove()
        if not entering:
            raise BadPicture("its text part was not reached")
        rows: Tensor = entering[0][0][[start + offset for offset in expansion.replaced]]
        return rows.detach().clone()

    def refusal(self, album: Album, states: Callable[[Tokens], Tensor]) -> str | None:
        """Why no prompt with a picture can be read by rows on this model; None where these give what it gives by
        itself. `states`: (T, H) before the tokens of a reply, by rows of the album's first picture."""
        name, expansion = album.numbered[0]
        prefix = suffix = tuple(range(5, 9))
        ids = (*prefix, *expansion.ids, *suffix)
        try:
            prompt = album.bind(ids, [name])[: -len(suffix)]
            by_rows = states(Tokens(prompt, (*suffix, suffix[-1])))
            model_states = self._model_states(album, ids, offset=len(prefix))[-len(by_rows) :]
        except Exception as error:  # a model's code may raise anything
            reason = " ".join(str(error).split())[:200]
            return f"this model does not read pictures here ({type(error).__name__}: {reason})"
        gap = float((by_rows - model_states).abs().max() / model_states.abs().max())
        if gap <= PROOF.get(by_rows.dtype, PROOF[torch.float32]):
            return None
        return f"this model reads pictures in a way that this trainer does not know: states differ by {gap:.3g}"

    def _model_states(self, album: Album, ids: Sequence[int], *, offset: int) -> Tensor:
        """(S, H) of the model's own forward pass, from pixels."""
        name, expansion = album.numbered[0]
        inputs = album.inputs(name)
        inputs.pop("attention_mask", None)
        inputs["input_ids"] = torch.tensor([list(ids)])
        if self.looks_ahead:
            replaced = {offset + piece for piece in expansion.replaced}
            inputs[LOOKS_AHEAD] = torch.tensor([[int(index in replaced) for index in range(len(ids))]])
        output = torch_load.body(self._causal)(**self._on_device(inputs), use_cache=False)
        states: Tensor = output.last_hidden_state[0]
        return states

    def _on_device(self, inputs: dict[str, Any]) -> dict[str, Any]:
        dtype = self._causal.get_input_embeddings().weight.dtype
        return {
            name: value.to(self._device, dtype) if value.is_floating_point() else value.to(self._device)
            for name, value in inputs.items()
            if isinstance(value, Tensor)
        }


def put_rows_in_place(table: torch.nn.Module, first_id: int, rows: Callable[[Tensor], Tensor]) -> None:
    """From now on ids from `first_id` on are looked up by `rows`, (N,) to (N, H), and not in the embedding `table`."""
    looked_up: list[Tensor] = []

    def hide_pieces(table: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        ids, *options = arguments
        looked_up[:] = [ids]
        return ids.masked_fill(ids >= first_id, 0), *options

    def put_rows(table: torch.nn.Module, arguments: tuple[Tensor, ...], words: Tensor) -> Tensor:
        """(B, S, H) with rows of pictures where their ids were."""
        ids = looked_up.pop()
        is_piece = ids >= first_id  # (B, S)
        if not bool(is_piece.any()):
            return words
        mixed = words.clone()
        mixed[is_piece] = rows(ids[is_piece]).to(words.dtype)
        return mixed

    table.register_forward_pre_hook(hide_pieces)
    table.register_forward_hook(put_rows)


class PictureRows:
    """Rows of an album's pictures, from the first pass that has one on."""

    def __init__(self, causal: Any, album: Album, device: str) -> None:
        self._album = album
        self._reader = PictureReader(causal, device)
        self.looks_ahead = self._reader.looks_ahead
        self._rows: Tensor | None = None  # (P, H) by id, from the album's first on
        self._cached_pictures = 0  # pictures that are in it
        put_rows_in_place(
            causal.get_input_embeddings(), album.first_id, lambda ids: self._up_to_date()[ids - album.first_id]
        )

    def are_in(self, sequences: Sequence[Tokens]) -> bool:
        return any(self._album.are_in(sequence.prompt) for sequence in sequences)

    def companions(self, ids: Tensor) -> dict[str, Tensor]:
        """Members of a forward pass that go with these ids (B, S)."""
        return {LOOKS_AHEAD: (ids >= self._album.first_id).long()} if self.looks_ahead else {}

    def refusal(self, states: Callable[[Tokens], Tensor]) -> str | None:
        """Why no sample with a picture can train on this model; None where it can. `states` as PictureReader's."""
        return self._reader.refusal(self._album, states)

    def means(self, names: Sequence[str]) -> NDArray[np.float64]:
        """(n, H) rows of each of these pictures, its pieces averaged."""
        rows, means, start = self._up_to_date(), {}, 0
        for name, expansion in self._album.numbered:
            end = start + len(expansion.replaced)
            means[name] = rows[start:end].float().mean(0)
            start = end
        return torch.stack([means[name] for name in names]).double().cpu().numpy()

    def _up_to_date(self) -> Tensor:
        """(P, H) of all pictures that have ids by now."""
        new = self._album.numbered[self._cached_pictures :]
        if new:
            # The first one to ask may be a pass without a gradient; passes with one read the same rows.
            with torch.inference_mode(False), torch.no_grad():
                parts = [self._reader.rows(self._album.inputs(name), expansion) for name, expansion in new]
                self._rows = torch.cat(parts if self._rows is None else [self._rows, *parts])
            self._cached_pictures += len(new)
        assert self._rows is not None, "a prompt has a picture, and none has ids"
        return self._rows
