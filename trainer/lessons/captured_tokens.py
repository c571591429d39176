"""Tokens of a reply as a server told them and the weights know them: their ids, and log-probs where it gave some.

Owns the way from bytes to ids. A server without ids sends the bytes behind each log-prob. A byte sequence is one token
of the vocabulary, or a character made of several. Of these the tokeniser says which, and the log-prob is the last
one's. What does not add up to the number of tokens that the server counted is not used. Not here: what the log-probs
are of, and what they are compared with (scoring).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from trainer.mis_po import Floats

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's tokens of one byte
SPACE: Final = "\u2581"  # SentencePiece's


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """The tokens of one reply, its end among them."""

    ids: tuple[int, ...]
    log_probs: Floats  # (T,) as the server gave them, NaN where it gave none


class Vocabulary:
    """The bytes of each token of a tokeniser."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[bytes, int] | None = None  # made when first asked for: a large one takes half a second

    def ids(self, piece: bytes) -> list[int]:
        """The tokens that these bytes are; empty where the tokeniser does not give just these bytes back."""
        if self._ids is None:
            self._ids = _ids_by_bytes(self._tokenizer)
        if (id := self._ids.get(piece)) is not None:
            return [id]
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            return []
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces = bytes_of(self._tokenizer, ids)
        return ids if None not in pieces and b"".join(filter(None, pieces)) == piece else []


def read_tokens(line: Mapping[str, Any], vocabulary: Vocabulary, end: int, *, size: int) -> KnownTokens | None:
    """Read each token of the reply from a line of samples.jsonl; None where nothing there can be relied on.

    `end` is the token that ends a turn: servers count it and give no log-prob of it.
    """
    log_probs = _numbers(line.get("logprobs"))
    if log_probs is None or line.get("logprobs_of") is None:
        return None
    if (token_ids := line.get("token_ids")) is not None:
        if not _are_ids(token_ids, size) or len(token_ids) != len(log_probs):
            return None
        ids, values = list(token_ids), log_probs
    elif (read := _tokens_of_pieces(line.get("pieces"), log_probs, vocabulary)) is not None:
        ids, values = read
    else:
        return None
    count = line.get("reply_tokens")
    ended = line.get("finish_reason") in ("stop", "tool_calls") and ids[-1] != end
    if type(count) is not int or count not in (len(ids), len(ids) + ended):
        return None  # a token is missing somewhere, and nobody knows where
    if count > len(ids):
        ids, values = [*ids, end], [*values, np.nan]
    return KnownTokens(tuple(ids), np.asarray(values, np.float64))


def _tokens_of_pieces(
    pieces: Any, log_probs: Sequence[float], vocabulary: Vocabulary
) -> tuple[list[int], list[float]] | None:
    if not isinstance(pieces, list) or len(pieces) != len(log_probs) or not pieces:
        return None
    ids: list[int] = []
    values: list[float] = []
    for piece, log_prob in zip(pieces, log_probs, strict=True):
        piece_ids = vocabulary.ids(piece.encode("latin-1"))
        if not piece_ids:
            return None
        ids += piece_ids
        values += [np.nan] * (len(piece_ids) - 1) + [log_prob]
    return ids, values


def _numbers(values: Any) -> list[float] | None:
    """Log-probs are finite, and not above 0 by more than rounding; the last bound is what no token that was sampled
    comes near."""
    if not isinstance(values, list) or not values:
        return None
    with contextlib.suppress(TypeError, ValueError):
        numbers = [float(value) for value in values]
        if all(-1000.0 < value <= 1e-3 for value in numbers):
            return numbers
    return None


def _are_ids(values: Any, size: int) -> bool:
    return isinstance(values, list) and bool(values) and all(type(i) is int and 0 <= i < size for i in values)


def _ids_by_bytes(tokenizer: Any) -> dict[bytes, int]:
    ids = range(len(tokenizer))
    id_of: dict[bytes, int] = {}
    for id, piece in zip(ids, bytes_of(tokenizer, ids), strict=True):
        if piece:
            id_of.setdefault(piece, id)  # of two alike the plain one comes first
    return id_of


def bytes_of(tokenizer: Any, ids: Sequence[int]) -> list[bytes | None]:
    """None for a token that is not text."""
    added = {id: str(token).encode() for id, token in tokenizer.added_tokens_decoder.items()}
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    letters = _LETTERS if _is_byte_level(tokenizer) else None
    return [
        added[id] if id in added else None if token is None else _spell(token, letters)
        for id, token in zip(ids, tokens, strict=True)
    ]


def _spell(token: str, letters: Mapping[str, int] | None) -> bytes | None:
    if letters is not None:
        with contextlib.suppress(KeyError):
            return bytes(letters[letter] for letter in token)
        return None
    if (byte := _BYTE.fullmatch(token)) is not None:
        return bytes([int(byte[1], 16)])
    return token.replace(SPACE, " ").encode()


@lru_cache(maxsize=4)  # writing a tokeniser out takes a tenth of a second
def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("decoder"))


def _byte_letters() -> dict[str, int]:
    """The letter by which a byte-level vocabulary writes each byte (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(unprintable)}


_LETTERS: Final = _byte_letters()
