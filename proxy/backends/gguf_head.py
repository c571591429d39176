"""Metadata of a GGUF file, read from its head with the standard library alone.

Owns the head's format (versions 2 and 3, little endian). Lists are passed over, but for their length: a vocabulary of
150,000 words is of no use here. Not here: what follows from it (weights_search). The trainer reads tensors with `gguf`.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from proxy.backends.model_files import open_regular

MOST: Final = 2**26  # bytes of one value: a head with more is damaged
WHOLE: Final = 2**28  # bytes of the whole head
TEXTS: Final = 2**22  # texts of a list: sixteen times the largest vocabulary
KEYS: Final = 10_000
TENSORS: Final = 100_000
DIMENSIONS: Final = 8
SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Tensor(NamedTuple):
    name: str
    kind: int  # ggml's number of its type
    elements: int
    bits: float  # of each


class NoGguf(Exception):
    """The file is none, is damaged, or cannot be read."""


def read_head(file: Path) -> dict[str, Any]:
    """Its metadata by key; of a list `{"length": n}`. Raises NoGguf."""
    try:
        with open_regular(file) as stream:
            return _read(stream)
    except (OSError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise NoGguf(f"{file} is not a GGUF file that can be read: {error}") from error


def read_tensors(file: Path) -> list[Tensor]:
    """Its tensors in the order of the file; the bits of one follow from where the next begins. Raises NoGguf."""
    try:
        with open_regular(file) as stream:
            _, _, count, _ = struct.unpack("<4sIQQ", stream.read(24))
            stream.seek(0)
            alignment = int(_read(stream).get("general.alignment", 32))
            heads = [_tensor(stream) for _ in range(min(count, TENSORS + 1))]
            start = -(-stream.tell() // alignment) * alignment
            end = stream.seek(0, os.SEEK_END) - start
    except (OSError, struct.error, UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise NoGguf(f"{file} is not a GGUF file that can be read: {error}") from error
    if count > TENSORS:
        raise NoGguf(f"{file} has {count} tensors")
    heads.sort(key=lambda head: head[3])
    ends = [*(offset for _, _, _, offset in heads[1:]), end]
    return [
        Tensor(name, kind, elements, max(0.0, 8 * (then - offset) / max(1, elements)))
        for (name, kind, elements, offset), then in zip(heads, ends, strict=True)
    ]


def _tensor(stream: BinaryIO) -> tuple[str, int, int, int]:
    """Name, type, number of elements, offset."""
    name, elements = _text(stream), 1
    for _ in range(min(int(_number(stream, "I")), DIMENSIONS)):
        elements *= int(_number(stream, "Q"))
    kind, offset = struct.unpack("<IQ", stream.read(12))
    return name, kind, elements, offset


def _read(stream: BinaryIO) -> dict[str, Any]:
    magic, version, _, count = struct.unpack("<4sIQQ", stream.read(24))
    if magic != b"GGUF" or version not in (2, 3) or count > KEYS:
        raise NoGguf("it does not begin as a GGUF file of version 2 or 3")
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = _text(stream)
        metadata[key] = _value(stream, _number(stream, "I"))
        if stream.tell() > WHOLE:
            raise NoGguf(f"its head is over {WHOLE} bytes")
    return metadata


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _text(stream)
    if kind == ARRAY:
        inner, length = struct.unpack("<IQ", stream.read(12))
        _pass_over(stream, inner, length)
        return {"length": length}
    if kind not in SCALARS:
        raise NoGguf(f"a value of the unknown kind {kind}")
    return _number(stream, SCALARS[kind])


def _pass_over(stream: BinaryIO, kind: int, length: int) -> None:
    if kind in SCALARS:
        _skip(stream, length * struct.calcsize(SCALARS[kind]))
    elif kind == STRING and length <= TEXTS:
        for _ in range(length):
            _skip(stream, _number(stream, "Q"))
    else:  # lists of lists are in no model's head
        raise NoGguf(f"a list of the unknown kind {kind}")


def _skip(stream: BinaryIO, size: int) -> None:
    if size > MOST or len(stream.read(size)) != size:
        raise NoGguf("it ends too early")


def _text(stream: BinaryIO) -> str:
    size = int(_number(stream, "Q"))
    if size > MOST:
        raise NoGguf("a text without end")
    raw = stream.read(size)
    if len(raw) != size:
        raise NoGguf("it ends too early")
    return raw.decode("utf-8")


def _number(stream: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", stream.read(struct.calcsize(code)))[0]
