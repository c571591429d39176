"""The key-value cache of a batch whose rows come and go.

Owns the layout: rows are aligned on the right, so that all of them write the next token in the same column. A row
shorter than the longest has padding on its left. Not here: who is in the batch (engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

SPARE = 128  # columns allocated ahead: growing copies a whole layer, so not at every token


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers carries no types here
    """One layer's keys and values in buffers with spare columns: appending a token copies that token only."""

    is_sliding = False  # a windowed model still gets its window, from its mask

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys, self.values = (_widen(old, end + SPARE, self.length) for old in (self.keys, self.values))
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class RowCache:
    """`lengths[i]` columns at the right end belong to row i; what lies left of them is masked padding."""

    def __init__(self, layers: int, lengths: Sequence[int]) -> None:
        self.cache = Cache(layers=[_Layer() for _ in range(layers)])
        self.lengths = list(lengths)

    @property
    def width(self) -> int:
        return cast(int, self.cache.layers[0].length)

    def append(self, model: Any, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """Run `ids` (B, q) after what is cached; `lengths` hold for afterwards. The last column's logits (B, V)."""
        end = self.width + ids.shape[1]
        starts = torch.tensor([end - length for length in lengths], device=ids.device)[:, None]  # (B, 1)
        columns = torch.arange(end, device=ids.device)  # (T)
        logits = model(
            input_ids=ids,
            # None where nothing is padding: attention then takes its fast path
            attention_mask=(columns >= starts).long() if min(lengths) < end else None,  # (B, T)
            position_ids=(columns[self.width :] - starts).clamp_min(0),  # (B, q)
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        self.lengths = list(lengths)
        return cast(Tensor, logits[:, -1].float())


def gather(sources: Sequence[tuple[RowCache, Sequence[int]]]) -> RowCache:
    """A new cache of the rows picked from each source, in order, no wider than its longest row."""
    lengths = [source.lengths[i] for source, rows in sources for i in rows]
    width = max(lengths)
    target = RowCache(len(sources[0][0].cache.layers), lengths)
    for index, layer in enumerate(target.cache.layers):
        pattern = sources[0][0].cache.layers[index]
        row_count = len(lengths)
        # Zeros, not empty: padding is multiplied by a weight of 0, and 0 · NaN is NaN.
        keys, values = (
            stored.new_zeros(row_count, stored.shape[1], width + SPARE, stored.shape[3])
            for stored in (pattern.keys, pattern.values)
        )
        first = 0
        for source, rows in sources:
            stored = source.cache.layers[index]
            used_width = min(max((source.lengths[i] for i in rows), default=0), stored.length)
            rows_of_source = torch.as_tensor(rows, device=keys.device, dtype=torch.long)
            columns = slice(stored.length - used_width, stored.length)
            last = first + len(rows)
            keys[first:last, :, width - used_width : width] = stored.keys[rows_of_source, :, columns]
            values[first:last, :, width - used_width : width] = stored.values[rows_of_source, :, columns]
            first = last
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values, layer.length = keys, values, width
    return target


def _widen(old: Tensor, width: int, used: int) -> Tensor:
    new = old.new_zeros(old.shape[0], old.shape[1], width, old.shape[3])
    new[:, :, :used] = old[:, :, :used]
    return new
