"""The head of a safetensors file, checked without loading a tensor.

Owns that what is said there is true of the file: a length that fits, names once, and known types. Shapes take exactly
the bytes they point at, with no gap and no overlap. What reads it after us may be less careful. Not here: which tensors
an adapter may have (peft_folder).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

MOST_HEAD: Final = 16 * 2**20  # a LoRA of the largest models has a tenth of that
BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


def flaw(path: Path) -> str | None:
    """The file's fault, in half a sentence; None where nothing is. Raises OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MOST_HEAD):
            return f"its head claims {length} bytes"
        raw = file.read(length)
    try:
        head = json.loads(raw, object_pairs_hook=_unique_members)
    except (ValueError, RecursionError):
        return "its head is no JSON object with each name once"
    if not isinstance(head, dict):
        return "its head is no JSON object"
    spans = []
    for name, tensor in head.items():
        if name == "__metadata__":
            if not isinstance(tensor, dict) or not all(isinstance(value, str) for value in tensor.values()):
                return "its metadata is not text"
            continue
        span = _span(tensor)
        if span is None:
            return f"the type, shape and place of {name[:200]!r} do not fit each other"
        spans.append(span)
    position = 0
    for start, end in sorted(spans):
        if start != position:
            return "its tensors overlap or leave gaps"
        position = end
    return None if position == size - 8 - length else "its tensors do not fill the file"


def _span(tensor: Any) -> tuple[int, int] | None:
    if not isinstance(tensor, dict) or set(tensor) != {"dtype", "shape", "data_offsets"}:
        return None
    kind, shape, place = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    if not isinstance(kind, str) or kind not in BITS or not _naturals(shape) or not _naturals(place) or len(place) != 2:
        return None
    start, end = place
    return (start, end) if (end - start) * 8 == math.prod(shape) * BITS[kind] else None


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 16 and all(type(n) is int and 0 <= n < 2**48 for n in value)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name comes twice")
    return members
