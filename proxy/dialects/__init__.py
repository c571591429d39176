"""The wire formats. One module each; this tuple registers all, and nothing else knows a protocol."""

from __future__ import annotations

from proxy.dialects.base import Asked, Dialect, Fold, Renderer, Reply
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.messages import Messages
from proxy.dialects.ollama import OllamaChat, OllamaGenerate

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Messages(), OllamaChat(), OllamaGenerate())

__all__ = ["DIALECTS", "Asked", "Dialect", "Fold", "Renderer", "Reply"]
