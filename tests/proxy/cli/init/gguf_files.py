"""Heads of GGUF files, written as the format says; the real `gguf` package writes those of test_gguf_head too."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_head(file: Path, values: Mapping[str, Any], version: int = 3) -> None:
    raw = struct.pack("<4sIQQ", b"GGUF", version, 0, len(values))
    for key, value in values.items():
        raw += _text(key) + _value(value)
    file.write_bytes(raw)


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(one) for one in value)
    return struct.pack("<I", 8) + _text(value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
