"""An export cut into requests: `rlproxy import`'s side of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

BATCH: Final = 4 * 1024 * 1024  # bytes, or one line that is longer


class UnreadableFile(Exception):
    """The sentence to end with."""


def batches(file: Path) -> Iterator[tuple[int, bytes]]:
    """How many lines came before, and lines."""
    first = count = size = 0
    lines: list[bytes] = []
    try:
        with file.open("rb") as rows:
            for row in rows:
                if lines and size + len(row) > BATCH:
                    yield first, b"".join(lines)
                    first, lines, size = count, [], 0
                lines.append(row)
                count, size = count + 1, size + len(row)
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read ({error}); what came before is taken.") from error
    if b"".join(lines).strip():
        yield first, b"".join(lines)
