"""An export cut into requests: `rlproxy import`'s side of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

BATCH: Final = 4 * 1024 * 1024  # bytes, or one line that is longer
LONGEST: Final = 1 << 28  # bytes of a line; the proxy takes server.max_body_bytes at most, 32 MiB unless that is raised


class UnreadableFile(Exception):
    """The sentence to end with."""


def batched(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Put lines into requests: how many came before, and lines. What they raise is raised after what came before."""
    first = count = size = 0
    part: list[bytes] = []
    failure: UnreadableFile | None = None
    rows = iter(lines)
    while True:
        try:
            line = next(rows)
        except StopIteration:
            break
        except UnreadableFile as error:
            failure = error
            break
        if part and size + len(line) > BATCH:
            yield first, b"".join(part)
            first, part, size = count, [], 0
        part.append(line)
        count, size = count + 1, size + len(line)
    if part:
        yield first, b"".join(part)
    if failure is not None:
        raise failure


def batches(file: Path) -> Iterator[tuple[int, bytes]]:
    """How many lines came before, and lines. Raises UnreadableFile, after what came before."""
    first = count = size = 0
    lines: list[bytes] = []
    failure: UnreadableFile | None = None
    try:
        with file.open("rb") as rows:
            while row := rows.readline(LONGEST):
                if len(row) == LONGEST and not row.endswith(b"\n"):
                    failure = UnreadableFile(
                        f"line {count + 1} of {file} is longer than {LONGEST:,} bytes, which no export has; what came "
                        "before is taken."
                    )
                    break
                if lines and size + len(row) > BATCH:
                    yield first, b"".join(lines)
                    first, lines, size = count, [], 0
                lines.append(row)
                count, size = count + 1, size + len(row)
    except OSError as error:
        failure = UnreadableFile(f"{file} cannot be read ({error}); what came before is taken.")
    if b"".join(lines).strip():
        yield first, b"".join(lines)
    if failure is not None:
        raise failure
