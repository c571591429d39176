"""The wire formats. One module each; this tuple registers all, and nothing else knows a protocol."""

from __future__ import annotations

from proxy.dialects.base import Asked, Dialect, Fold, Renderer, Reply
from proxy.dialects.chat import ChatCompletions

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(),)

__all__ = ["DIALECTS", "Asked", "Dialect", "Fold", "Renderer", "Reply"]
