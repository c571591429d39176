"""Attention over a prefix tree, as transformers models take it: each token sees its ancestors and nothing else.

Owns the attention function, and the question whether a model may use it: asked of its config, then proved on four
short sequences. A model that may not keeps rows padded to the longest, and says why. On the CPU it is SDPA in blocks
of rows, each with only the columns that one of them sees. Those are within a layer's window, and beside its sink. Some
layers read one token after the other (linear attention, short convolutions, state spaces). They get the tree as its
sequences, and give one state a token back. On CUDA it is FlexAttention (written, not run: see docs/lab/benchmarks.md).
Not here: what the tree is (tree).
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.policy import torch_load, tree
from trainer.policy.packing import Tokens
from trainer.policy.tree import Forest

NAME = "rlproxy_tree"  # what the model's config calls it
# Relative: rounding is below 1e-5, or near 1e-2 in bf16, a mask or a position that is wrong far above.
PROOF = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
PROVED = 12  # tokens of the longest sequence that it is proved on, and of a layer's window
READ_IN_ORDER = ("linear_attn", "conv", "mamba")  # what models call the part of a layer that has a running state
KNOWN_LAYERS = frozenset({  # what config.json's layer_types call those that are computed here
    "full_attention", "sliding_attention", "attention", "linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding",
})  # fmt: skip
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotary embeddings that change with the longest sequence beside it


class Layout:
    """A forest on its device: what the model's forward pass takes, and the attention itself."""

    def __init__(self, forest: Forest, device: str, *, flex: bool) -> None:
        self.ids = torch.from_numpy(forest.ids).to(device)[None]  # (1, S)
        self.depth = torch.from_numpy(forest.depth).to(device)[None]  # (1, S)
        self.end = torch.from_numpy(forest.end).to(device)  # (S,)
        self._paths, self._place = (torch.from_numpy(array).to(device) for array in tree.as_rows(forest))
        self._blocks: list[tuple[int, int, Tensor | None]] = []
        self._mask = _flex_mask(self.end) if flex else None
        if not flex:
            for block in tree.blocks(forest):
                columns = None if block.columns is None else torch.from_numpy(block.columns).to(device)
                self._blocks.append((block.first, block.last, columns))

    def inputs(self) -> dict[str, Any]:
        # A mask of four dimensions is handed on as it is; this one only keeps transformers from making its own.
        return {
            "input_ids": self.ids,
            "position_ids": self.depth,
            "attention_mask": self.end[None, None, None],
            "use_cache": False,
            "tree": self,
        }

    def sequences(self, states: Tensor) -> Tensor:
        """(1, S, H) of the tree -> (B, L, H) of its sequences, padded on the right."""
        return states[0][self._paths]

    def tokens(self, states: Tensor) -> Tensor:
        """(B, L, H) of the sequences -> (1, S, H) of the tree: what several of them share is the same in each."""
        return states.flatten(0, 1)[self._place][None]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        *,
        window: int | None = None,
        sink: Tensor | None = None,
    ) -> Tensor:
        """(1, heads, S, D), keys and values with as many heads as there are or a divisor of it -> the like. `window`:
        how many tokens each one sees, itself among them. `sink` (heads,): a score beside those of the tokens, which
        takes its share of the attention and gives nothing."""
        if self._mask is not None:
            if window is not None or sink is not None:
                raise ValueError("windows and sinks are not written for this kernel")
            return _flex(query, key, value, self._mask, scale)
        repeat = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, repeat), repeat_kv(value, repeat)
        parts = []
        for first, last, columns in self._blocks:
            rows = query[:, :, first:last]
            span = slice(first, last)
            if columns is None and (sink is not None or (window is not None and window < last - first)):
                columns = torch.arange(first, last, device=query.device)
            if columns is None:
                parts.append(
                    scaled_dot_product_attention(rows, key[:, :, span], value[:, :, span], is_causal=True, scale=scale)
                )
                continue
            arguments = (rows, key, value, first, columns, scale, window, sink)
            if torch.is_grad_enabled() and rows.requires_grad:
                # The gathered columns are copies; recomputed they need not be kept for every layer.
                parts.append(checkpoint(self._block, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(self._block(*arguments))
        return torch.cat(parts, 2)

    def _block(
        self,
        rows: Tensor,
        key: Tensor,
        value: Tensor,
        first: int,
        columns: Tensor,
        scale: float | None,
        window: int | None,
        sink: Tensor | None,
    ) -> Tensor:
        row_index = torch.arange(first, first + rows.shape[2], device=rows.device)[:, None]  # (R, 1)
        sees = (columns <= row_index) & (row_index < self.end[columns])  # (R, C)
        if window is not None:
            sees &= self.depth[0][row_index] - self.depth[0][columns] < window
        key, value = key.index_select(2, columns), value.index_select(2, columns)
        if sink is None:
            return scaled_dot_product_attention(rows, key, value, attn_mask=sees, scale=scale)
        return _beside_sink(rows, key, value, sees, scale, sink)


def _beside_sink(
    query: Tensor, key: Tensor, value: Tensor, sees: Tensor | None, scale: float | None, sink: Tensor
) -> Tensor:
    """SDPA with one more column, of which only the score is not nothing. `sees` (…, R, C), of truth values or to be
    added; None: each row all before it."""
    rows, columns = query.shape[2], key.shape[2]
    if sees is None:
        sees = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
    mask = query.new_zeros(len(query), query.shape[1], rows, columns + 1)
    mask[..., :-1] = mask[..., :-1].masked_fill(~sees, -torch.inf) if sees.dtype == torch.bool else sees
    mask[..., -1] = sink.to(mask.dtype)[None, :, None]
    key, value = (torch.cat([part, torch.zeros_like(part[:, :, :1])], 2) for part in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def _one_token(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """SDPA for one new token a row, without a copy of the cache for each query head that shares it."""
    grouped = query.view(len(query), key.shape[1], -1, query.shape[3])  # (B, heads of keys, queries of each, D)
    scores = grouped @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(-1, torch.float32).to(value.dtype) @ value).view(*query.shape[:3], value.shape[3])


def _forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that a transformers layer calls. Without a tree (generation, padded rows) it is
    transformers' own SDPA."""
    sink = options.pop("s_aux", None)
    if tree is None and sink is None and query.shape[2] == 1 and query.is_cpu:
        return _one_token(query, key, value, attention_mask, options.get("scaling")).transpose(1, 2), None
    if tree is None and sink is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return out, None
    for name in ("softcap", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(f"its attention has {name}")
    scale = options.get("scaling")
    if tree is None:
        repeat = query.shape[1] // key.shape[1]
        states = _beside_sink(query, repeat_kv(key, repeat), repeat_kv(value, repeat), attention_mask, scale, sink)
    else:
        states = tree.attend(query, key, value, scale, window=options.get("sliding_window"), sink=sink)
    return states.transpose(1, 2).contiguous(), None


def _as_sequences(module: torch.nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
    """Before a part that reads in order: the tree's sequences, each by itself."""
    if (layout := options.get("tree")) is None:
        return None
    return arguments, {**options, "hidden_states": layout.sequences(options["hidden_states"]), "attention_mask": None}


def _as_tree(module: torch.nn.Module, arguments: Any, options: dict[str, Any], states: Any) -> Any:
    layout = options.get("tree")
    return None if layout is None else layout.tokens(states)


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, sdpa_mask)


# --- may this model use it? ---------------------------------------------------------------------------------------


def prepare(causal: Any, device: str, *, max_seq_len: int) -> tuple[str | None, str]:
    """The kernel that this model's trees are computed with, or None; and why. The model is left ready for it."""
    if reason := _forbids(causal.config.get_text_config()):
        return None, reason
    original = causal.config._attn_implementation
    if original not in ("sdpa", "eager") or not causal._can_set_attn_implementation():
        return None, f"its attention is {original}, which cannot be replaced"
    causal.set_attn_implementation(NAME)
    window = getattr(causal.config.get_text_config(), "sliding_window", None) or 0
    length = PROVED + (window if window < max_seq_len else 0)  # so that it closes
    hooks = [hook for part in _reading_in_order(causal) for hook in _watch(part)]
    findings = []
    for kernel in ("flex", "blocks") if _flex_is_there(device) else ("blocks",):
        try:
            gap = _gap(causal, device, flex=kernel == "flex", length=length)
        except Exception as error:  # a model's code, or a compiler, may raise anything
            findings.append(f"{kernel}: {type(error).__name__}: {error}")
            continue
        if gap <= PROOF[causal.dtype]:
            findings.append(f"{kernel}: four sequences gave the same hidden states together as apart")
            return kernel, "; ".join(findings)
        findings.append(f"{kernel}: four sequences gave other hidden states together than apart (by {gap:.3g})")
    causal.set_attn_implementation(original)
    for hook in hooks:
        hook.remove()
    return None, "; ".join(findings)


def _reading_in_order(causal: Any) -> list[torch.nn.Module]:
    """The parts of its layers that have a running state."""
    layers = [layer for layer in causal.modules() if isinstance(layer, GradientCheckpointingLayer)]
    parts = (getattr(layer, name, None) for layer in layers for name in READ_IN_ORDER)
    return [part for part in parts if isinstance(part, torch.nn.Module)]


def _watch(part: torch.nn.Module) -> tuple[Any, Any]:
    return (
        part.register_forward_pre_hook(_as_sequences, with_kwargs=True),
        part.register_forward_hook(_as_tree, with_kwargs=True),
    )


def _forbids(config: Any) -> str | None:
    """The part of a config that rules out that a token depends on its ancestors alone, wherever they stand in the
    batch."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if other_kinds := sorted(kinds - KNOWN_LAYERS):
        return f"it has {', '.join(other_kinds)} layers"
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [r for r in rope.values() if isinstance(r, dict)]
    for kind in [r.get("rope_type") for r in (rope, *nested)]:
        if kind in LENGTH_DEPENDENT:
            return f"its {kind} rotary embedding depends on the longest sequence beside it"
    return None


def _gap(causal: Any, device: str, *, flex: bool, length: int) -> float:
    """The largest difference between hidden states in one tree and one by one, as a share of the largest. `length`: of
    the longest sequence."""
    vocabulary = causal.config.get_text_config().vocab_size
    ids = tuple(i % vocabulary for i in range(3, 3 + length))
    rows = [Tokens(ids, ids[:3]), Tokens(ids[:6], ids[8:1:-1]), Tokens(ids[5::-1], ids[:4]), Tokens(ids[:-3], ids[1:4])]
    forest = tree.grow(rows)
    with torch.inference_mode():
        tree_states = torch_load.body(causal)(**Layout(forest, device, flex=flex).inputs()).last_hidden_state[0]
        gap = 0.0
        for row, path in zip(rows, forest.paths, strict=True):
            row_ids = torch.tensor([row.computed], device=device)
            states = torch_load.body(causal)(input_ids=row_ids, use_cache=False).last_hidden_state[0]
            difference = (tree_states[torch.from_numpy(path).to(device)] - states).abs().max() / states.abs().max()
            gap = max(gap, float(difference))
    return gap


# --- CUDA ---------------------------------------------------------------------------------------------------------


def _flex_is_there(device: str) -> bool:
    return (
        device == "cuda"
        and torch.cuda.get_device_capability() >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


def _flex_mask(end: Tensor) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < end[column])

    return create_block_mask(sees, None, None, len(end), len(end), device=str(end.device))


_compiled: Any = None


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float | None) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    global _compiled
    kernel = flex_attention  # as it is it writes down all S × S scores: for tests
    if query.is_cuda:
        kernel = _compiled = _compiled or torch.compile(flex_attention, dynamic=True)
    out: Tensor = kernel(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return out
