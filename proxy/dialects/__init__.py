"""The wire formats. One module each; this tuple registers all, and nothing else knows a protocol."""

from __future__ import annotations

from proxy.dialects.base import Asked, Dialect, Earlier, Fold, Renderer, Reply
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.completions import Completions
from proxy.dialects.messages import Messages
from proxy.dialects.ollama import OllamaChat, OllamaGenerate
from proxy.dialects.responses import Responses

CHAT = ChatCompletions()  # what every backend speaks
MESSAGES = Messages()
DIALECTS: tuple[Dialect, ...] = (CHAT, Completions(), Responses(), MESSAGES, OllamaChat(), OllamaGenerate())

COUNT_TOKENS = "/v1/messages/count_tokens"  # answers nothing, but its errors have the format's shape
_AT = {COUNT_TOKENS: MESSAGES, **{path: dialect for dialect in DIALECTS for path in dialect.paths}}


def dialect_at(path: str) -> Dialect | None:
    """Whose route this is, with or without a session in the path."""
    if path.startswith("/s/"):
        path = "/" + path.split("/", 3)[-1]
    return _AT.get(path)


__all__ = [
    "CHAT",
    "COUNT_TOKENS",
    "DIALECTS",
    "MESSAGES",
    "Asked",
    "Dialect",
    "Earlier",
    "Fold",
    "Renderer",
    "Reply",
    "dialect_at",
]
