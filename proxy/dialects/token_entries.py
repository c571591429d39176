"""Entries of log-probs as chat completions and Ollama have them: one for each token, or for a piece of several.

Owns what is read of an entry: its log-prob, and the bytes behind it, or its id where a server gives that instead. It
knows which pieces of a stream are there for entries alone. Which ids the bytes are is for whoever has the vocabulary
(trainer.lessons.captured_tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from proxy.dialects.base import Reply, extend

LONGEST: Final = 65_535  # bytes of one piece, as the store packs them


def take(reply: Reply, entries: Any) -> None:
    """Append these entries to what the reply has. A broken one makes all log-probs of the reply useless: they are
    dropped, and the reply says why."""
    if reply.broken_logprobs is not None:
        return
    try:
        _append(reply, entries)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reply.logprobs = reply.pieces = None
        reply.broken_logprobs = f"the backend sent a log-prob that is not a number ({error!r})"


def take_numbers(reply: Reply, logprobs: Any) -> None:
    """Append log-probs that stand alone, likewise."""
    try:
        reply.logprobs = extend(reply.logprobs, [float(logprob) for logprob in logprobs])
    except (ValueError, TypeError, OverflowError) as error:
        reply.logprobs = None
        reply.broken_logprobs = f"the backend sent a log-prob that is not a number ({error!r})"


def take_unconstrained(reply: Reply, logprobs: Any) -> None:
    """Append log-probs of the same tokens, had no constraint ruled any out, likewise; None: the server gives none."""
    if logprobs is None or reply.broken_logprobs is not None:
        return
    try:
        numbers = [float(logprob) for logprob in logprobs]
        reply.unconstrained_logprobs = extend(reply.unconstrained_logprobs, numbers)
    except (ValueError, TypeError, OverflowError) as error:
        reply.broken_logprobs = f"the backend sent a log-prob that is not a number ({error!r})"


def take_ids(reply: Reply, ids: Any) -> None:
    """Append these token ids, likewise."""
    if reply.broken_ids is not None:
        return
    try:
        reply.token_ids = extend(reply.token_ids, ids)
    except TypeError as error:
        reply.token_ids = None
        reply.broken_ids = f"the backend sent token ids that are not a list ({error!r})"


def _append(reply: Reply, entries: Sequence[Any]) -> None:
    reply.logprobs = extend(reply.logprobs, [float(entry["logprob"]) for entry in entries])
    if reply.token_ids is not None:  # the server gives ids beside them
        return
    length = 0 if reply.pieces is None else len(reply.pieces)
    if length + len(entries) == len(reply.logprobs):
        pieces = [_bytes(entry) for entry in entries]
        if None in pieces:
            reply.pieces = None
        else:
            reply.pieces = extend(reply.pieces, pieces)


def published(entries: Any) -> list[dict[str, Any]]:
    """Entries of chat completions with the members that OpenAI's have: some servers add ids of their own. Raises
    TypeError, KeyError, AttributeError where they are none."""
    return [
        {
            **_published(entry),
            "top_logprobs": [_published(alternative) for alternative in entry.get("top_logprobs") or ()],
        }
        for entry in entries or ()
    ]


def _published(entry: Any) -> dict[str, Any]:
    """Where the server tells no bytes they are those of the text, unless that is a broken piece of a character."""
    numbers, token = entry.get("bytes"), entry["token"]
    if numbers is None:
        numbers = [] if "\ufffd" in token else list(token.encode("utf-8", "surrogatepass"))
    return {"token": token, "logprob": entry["logprob"], "bytes": numbers}


def bare_ids(entries: Any) -> list[int] | None:
    """The ids of entries that have nothing else, as mlx-lm sends them."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    ids = [entry["id"] for entry in entries if "token" not in entry and type(entry.get("id")) is int]
    return ids if ids and len(ids) == len(entries) else None


def has_only_logprobs(choice: Any) -> bool:
    """Tell whether this piece of a chat stream has log-probs and says nothing, but perhaps who speaks."""
    delta = choice.get("delta") or {}
    says = any(value for key, value in delta.items() if key != "role")
    return not says and bool(choice.get("logprobs")) and not choice.get("finish_reason")


def _bytes(entry: Any) -> bytes | None:
    """None where it does not tell; the text may be a broken piece of a character."""
    numbers = entry.get("bytes")
    if isinstance(numbers, list):
        content = bytes(numbers)
    elif numbers is not None:  # of a number `bytes` would make as many zeros
        return None
    else:
        text = entry.get("token")
        if not isinstance(text, str) or "\ufffd" in text:
            return None
        try:
            content = text.encode()
        except UnicodeEncodeError:  # half of a character
            return None
    return content if len(content) <= LONGEST else None
