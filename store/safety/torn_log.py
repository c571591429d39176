"""Whether the database's log (WAL) that a kill left can be read to its end.

SQLite takes the log up to the first frame whose checksum is wrong, and writes over all after it. Mostly that is right:
a power cut leaves a last transaction half written. But each transaction is on disk before the next one begins. So where
whole transactions lie behind a broken frame, what was acknowledged would be lost without a word: then nothing is
opened. Owns that look, in time proportional to the log. Not here: the check of the file (integrity).
An encrypted database's log has the same frames.
"""

from __future__ import annotations

import sys
from array import array
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import StoreDamaged
from store.safety import integrity

MAGIC: Final = 0x377F0682  # the last bit: whether checksums are of big-endian words
HEADER: Final = 32  # bytes
FRAME: Final = 24  # before each page
PAGE: Final = 4096  # of all our databases
MASK: Final = 0xFFFFFFFF

Sums = tuple[int, int]
Log = bytes | mmap


class Torn(NamedTuple):
    at: int  # the byte at which what can be read ends
    commits: int  # transactions behind it


def check(database: Path) -> None:
    """Before SQLite opens it. Raises StoreDamaged, and leaves the note."""
    log = database.with_name(database.name + "-wal")
    if not log.exists() or log.stat().st_size <= HEADER:
        return
    with log.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as raw:
        torn = look(raw)
    if torn is not None:
        integrity.write_note(database, f"its log {log.name} is broken at byte {torn.at}")
        raise StoreDamaged(
            f"{log} is damaged at byte {torn.at}: {torn.commits} writes behind it cannot be read, and SQLite would "
            "overwrite them. Nothing was changed. Copy the file first; then `truncate -s "
            f"{torn.at} {log}` goes on with what was stored before, or `rlproxy restore` with a backup."
        )


def look(raw: Log) -> Torn | None:
    """None where the log is whole, or only its last transaction is not."""
    magic, size = _number(raw, 0), _number(raw, 8)
    order = "big" if magic & 1 else "little"
    sums = _sums(raw[:24], (0, 0), order)
    if sums != (_number(raw, 24), _number(raw, 28)) or magic | 1 != MAGIC | 1:
        return _torn(raw, HEADER, raw[HEADER + 8 : HEADER + 16], PAGE, 0)  # SQLite takes nothing of it
    good = HEADER
    for at in range(HEADER, len(raw) - FRAME - size + 1, FRAME + size):
        sums = _sums(raw[at : at + 8], sums, order)
        sums = _sums(raw[at + FRAME : at + FRAME + size], sums, order)
        if raw[at + 8 : at + 16] != raw[16:24] or sums != (_number(raw, at + 16), _number(raw, at + 20)):
            return _torn(raw, at, raw[16:24], size, good)
        if _number(raw, at + 4):  # the last frame of a transaction
            good = at + FRAME + size
    return None


def _torn(raw: Log, at: int, salts: bytes, size: int, good: int) -> Torn | None:
    """Frames of this log have its salts; what is older has others. One transaction may be half written."""
    ends = [
        _number(raw, frame + 4) > 0
        for frame in range(at, len(raw) - FRAME - size + 1, FRAME + size)
        if raw[frame + 8 : frame + 16] == salts
    ]
    commits = sum(ends)
    begun = bool(ends) and not ends[-1]
    return Torn(good, commits) if commits + begun > 1 else None


def _sums(piece: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum, gone on with."""
    words = array("I", piece)
    if order != sys.byteorder:
        words.byteswap()
    first, second = sums
    pairs = iter(words)
    for one, other in zip(pairs, pairs, strict=True):
        first = (first + one + second) & MASK
        second = (second + other + first) & MASK
    return first, second


def _number(raw: Log, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "big")
