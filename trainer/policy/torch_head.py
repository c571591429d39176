"""The model's head, a few rows at a time: what is computed from logits, without ever holding all of them.

Owns the chunks, and the numbers of a row. A reply token's logits are (V,), 50,000 to 250,000 numbers, and what becomes
of them is one: its log-prob. So each chunk of rows goes from hidden states to its numbers. Their slopes with respect
to the hidden states are taken while the logits are still there. The backward pass is then one product. The head itself
is frozen: no gradient goes to it. Not here: which rows there are (torch_policy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 32 << 20  # of fp32 logits; some copies of it are held at once
LEAST_ROWS = 16
# (hidden states (n, H), which rows these are) -> (n,) or (n, K); a row's number depends on that row alone
Score = Callable[[Tensor, slice], Tensor]


def chunks(rows: int, vocabulary: int) -> Iterator[slice]:
    at_once = max(LEAST_ROWS, CHUNK_BYTES // (4 * vocabulary))
    for first in range(0, rows, at_once):
        yield slice(first, min(first + at_once, rows))


def by_rows(hidden: Tensor, score: Score, vocabulary: int) -> Tensor:
    """(N, H) -> (N,), with the gradient to `hidden`."""
    values: Tensor = _ByRows.apply(hidden, score, vocabulary)  # type: ignore[no-untyped-call]
    return values


def recomputed_by_rows(hidden: Tensor, score: Score, vocabulary: int) -> Tensor:
    """(N, H) -> (N, K): K numbers a row have K slopes, so the logits are computed once more on the way back. Those of
    the last chunk are kept: the way back begins with it."""
    *recomputed, last = chunks(len(hidden), vocabulary)
    values = [checkpoint(score, hidden[part], part, use_reentrant=False) for part in recomputed]
    return torch.cat([*values, score(hidden[last], last)])


def log_probs_of(logits: Tensor, target: Tensor) -> Tensor:
    """log-softmax (n, V) at the targets (n,), without writing the whole of it down."""
    return logits.gather(-1, target[:, None]).squeeze(-1) - logits.logsumexp(-1)


def with_entropies(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """log-softmax (n, V) at the targets (n,), and the entropies (n,)."""
    log_probs = logits.log_softmax(-1)
    return log_probs.gather(-1, target[:, None]).squeeze(-1), -log_probs.exp().mul_(log_probs).sum(-1)


def many_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """log-softmax (n, V) at the ids (n, K)."""
    return logits.gather(-1, ids.long()) - logits.logsumexp(-1, keepdim=True)


def logit_scaling(config: Any) -> Any:
    """A model's change of its logits after the head: nothing, a soft cap (Gemma 2), or one factor."""
    config = config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        return lambda logits: torch.tanh(logits / cap) * cap
    factor = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    return (lambda logits: logits * factor) if factor != 1.0 else (lambda logits: logits)


def support_mass(logits: Tensor, target: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """log of the mass that top-k, then top-p keep (n,); +inf where the target is not kept."""
    ordered, order = logits.sort(-1, descending=True)  # (n, V)
    rank = torch.arange(ordered.shape[-1], device=logits.device)
    ordered = ordered.masked_fill((rank >= top_k[:, None]) & (top_k > 0)[:, None], -torch.inf)
    shares = ordered.softmax(-1)
    mass_above = shares.cumsum(-1) - shares  # mass of the likelier tokens
    mask = (mass_above < top_p[:, None]) & ordered.isfinite()  # the first always
    place = (order == target[:, None]).to(torch.int8).argmax(-1)
    mass = torch.where(mask, logits.gather(-1, order), -torch.inf).logsumexp(-1) - logits.logsumexp(-1)
    return torch.where(mask.gather(-1, place[:, None]).squeeze(-1), mass, torch.inf)


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, score: Score, vocabulary: int) -> Tensor:
        slopes = torch.empty_like(hidden)
        values = []
        for part in chunks(len(hidden), vocabulary):
            with torch.enable_grad():
                rows = hidden[part].detach().requires_grad_()
                value = score(rows, part)
                # Rows do not know of each other: the gradient of the sum holds each row's own.
                (slopes[part],) = torch.autograd.grad(value.sum(), rows)
            values.append(value.detach())
        ctx.save_for_backward(slopes)
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return gradient.to(slopes.dtype)[:, None] * slopes, None, None
