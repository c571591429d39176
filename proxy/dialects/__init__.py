"""The wire formats: one module each, and this tuple registers all."""

from __future__ import annotations

from typing import Any

import orjson

from proxy.core.errors import ProxyError
from proxy.dialects.base import Dialect, Fold, ParsedRequest, PreviousCompletion, Renderer, Reply
from proxy.dialects.chat import ChatCompletions
from proxy.dialects.completions import Completions
from proxy.dialects.messages import Messages
from proxy.dialects.ollama import OllamaChat, OllamaGenerate
from proxy.dialects.responses import Responses

CHAT = ChatCompletions()  # what every backend speaks
MESSAGES = Messages()
RESPONSES = Responses()
OLLAMA = OllamaChat()
DIALECTS: tuple[Dialect, ...] = (CHAT, Completions(), RESPONSES, MESSAGES, OLLAMA, OllamaGenerate())

COUNT_TOKENS = "/v1/messages/count_tokens"  # answers nothing, but its errors have the format's shape
# Of requests that the backend let pass and that make no sense here.
_SENSELESS = (ProxyError, ValueError, TypeError, AttributeError, KeyError, IndexError)
_BY_PATH = {COUNT_TOKENS: MESSAGES, **{path: dialect for dialect in DIALECTS for path in dialect.paths}}


def dialect_at(path: str) -> Dialect | None:
    """Whose route this is, with or without a session in the path."""
    if path.startswith("/s/"):
        path = "/" + path.split("/", 3)[-1]
    return _BY_PATH.get(path)


def chat_tools(name: str, request: bytes) -> list[dict[str, Any]] | None:
    """Tools that a stored request of this format offered, in chat form. None also for a request that the backend let
    pass and that makes no sense here: it may not keep others from training."""
    try:
        return _by_name(name).tools(orjson.loads(request)) or None
    except _SENSELESS:
        return None


def chat_turns(name: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a stored request of this format, as its translation sent them."""
    try:
        return _by_name(name).turns(messages)
    except _SENSELESS:
        return messages


def has_one_text(name: str) -> bool:
    """Tell if a message of this format is one text, and pictures beside it."""
    return _by_name(name).has_one_text


def template_kwargs(name: str, request: bytes, *, translated: bool) -> dict[str, Any] | None:
    """Arguments of the chat template for a stored request of this format, besides messages and tools."""
    try:
        variables = _by_name(name).template_kwargs(orjson.loads(request), translated=translated)
    except _SENSELESS:
        return None
    return variables if variables and isinstance(variables, dict) else None


def _by_name(name: str) -> Dialect:
    return next((dialect for dialect in DIALECTS if dialect.name == name), CHAT)


__all__ = [
    "CHAT",
    "COUNT_TOKENS",
    "DIALECTS",
    "MESSAGES",
    "RESPONSES",
    "Dialect",
    "Fold",
    "ParsedRequest",
    "PreviousCompletion",
    "Renderer",
    "Reply",
    "chat_tools",
    "chat_turns",
    "dialect_at",
    "has_one_text",
    "template_kwargs",
]
