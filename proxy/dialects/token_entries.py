"""Entries of log-probs as chat completions and Ollama have them: one for each token, or for a piece of several.

Owns what is read of an entry: its log-prob, and the bytes behind it, or its id where a server gives that instead. It
knows which pieces of a stream are there for entries alone. Which ids the bytes are is for whoever has the vocabulary
(trainer.lessons.captured_tokens).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.core.json_edit import dumps
from proxy.dialects.base import Reply, longer

_DELTA: Final = re.compile(rb'"delta"[ ]*:[ ]*\{')
_ROLE: Final = re.compile(rb'"role"[ ]*:')
LONGEST: Final = 65_535  # bytes of one piece, as the store packs them


def take(reply: Reply, entries: Sequence[Any]) -> None:
    """Append these entries to what the reply has. Raises ValueError, KeyError and TypeError."""
    reply.logprobs = longer(reply.logprobs, [float(entry["logprob"]) for entry in entries])
    if reply.token_ids is not None:  # the server gives ids beside them
        return
    known = 0 if reply.pieces is None else len(reply.pieces)
    if known + len(entries) == len(reply.logprobs):
        more = [_bytes(entry) for entry in entries]
        if None in more:
            reply.pieces = None
        else:
            reply.pieces = longer(reply.pieces, more)


def named(entries: Sequence[Any]) -> list[int] | None:
    """The ids of entries that have nothing else, as mlx-lm sends them."""
    found = [entry["id"] for entry in entries if "token" not in entry and type(entry.get("id")) is int]
    return found if found and len(found) == len(entries) else None


def alone(choice: Any) -> bool:
    """Tell whether this piece of a chat stream has log-probs and says nothing, but perhaps who speaks."""
    delta = choice.get("delta") or {}
    says = any(value for key, value in delta.items() if key != "role")
    return not says and bool(choice.get("logprobs")) and not choice.get("finish_reason")


def role_in(event: Mapping[str, Any]) -> bytes:
    """The role, as JSON, where a piece of a chat stream says that of its only choice."""
    choices = event.get("choices")
    role = choices[0].get("delta", {}).get("role") if choices and len(choices) == 1 else None
    return dumps(role) if isinstance(role, str) else b""


def with_role(raw: bytes, role: bytes) -> bytes:
    """The next piece of that stream, which says it instead, unless it does already."""
    found = _DELTA.search(raw)
    if found is None or _ROLE.search(raw, found.end()) is not None:
        return raw
    head, rest = raw[: found.end()], raw[found.end() :]
    return head + b'"role":' + role + (b"" if rest.lstrip().startswith(b"}") else b",") + rest


def _bytes(entry: Any) -> bytes | None:
    """None where it does not tell; the text may be a broken piece of a character."""
    if (given := entry.get("bytes")) is not None:
        found = bytes(given)
    else:
        text = entry.get("token")
        if not isinstance(text, str) or "\ufffd" in text:
            return None
        found = text.encode()
    return found if len(found) <= LONGEST else None
