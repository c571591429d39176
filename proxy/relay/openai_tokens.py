"""How long a prompt is in the tokens of OpenAI's models, by tiktoken (extra `count`).

For a server that serves one of them and cannot count. tiktoken knows models by their names. It downloads a table of 2
to 4 MB from OpenAI at its first use. Owns what is counted. Not here: whether the server counts itself (count_tokens).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from proxy.core.json_edit import dumps
from proxy.core.offload import in_thread

if TYPE_CHECKING:
    from tiktoken import Encoding

# OpenAI's cookbook, "How to count tokens with tiktoken": around each message, and before the answer.
MESSAGE: Final = 3
ANSWER: Final = 3
TABLE_SECONDS: Final = 60


class TokenEstimate(NamedTuple):
    tokens: int
    table: str  # as tiktoken names it


async def count(model: str, chat: Mapping[str, Any]) -> TokenEstimate | str:
    """Count the tokens of a chat request with texts and tools, or return why they cannot be counted.

    Texts count exactly. OpenAI does not publish how a model is told its tools, so tools count as their JSON.
    """
    try:
        from tiktoken import encoding_name_for_model, get_encoding
    except ImportError:
        return "tiktoken, which counts for OpenAI's models, is not installed: pip install 'rlproxy[count]'"
    try:
        table = encoding_name_for_model(model.removeprefix("openai/"))
    except KeyError:
        return f"tiktoken does not know a model {model!r}"
    try:
        async with asyncio.timeout(TABLE_SECONDS):
            encoding = await asyncio.to_thread(get_encoding, table)
    except (OSError, ValueError) as error:  # no network, or another table than the one that it knows
        return f"tiktoken could not have its table {table} ({type(error).__name__})"
    return TokenEstimate(await in_thread(_tokens, encoding, chat), table)


def _tokens(encoding: Encoding, chat: Mapping[str, Any]) -> int:
    count = ANSWER + MESSAGE * len(chat["messages"])
    return count + sum(len(encoding.encode_ordinary(text)) for text in _texts(chat))


def _texts(chat: Mapping[str, Any]) -> Iterator[str]:
    """All that the model is told, roles included."""
    for message in chat["messages"]:
        yield message["role"]
        content = message.get("content")
        for part in content if isinstance(content, list) else ({"text": content},):
            yield part.get("text") or ""
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"]
            yield call["function"]["arguments"]
    if tools := chat.get("tools"):
        yield dumps(tools).decode()
