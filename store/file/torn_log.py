"""Check that the database's log (WAL) that a kill left can be read to its end.

SQLite takes the log up to the first frame whose checksum is wrong, and writes over all after it. Mostly that is right:
a power cut leaves a last transaction half written. But each transaction is on disk before the next one begins. So where
whole transactions lie behind a broken frame, what was acknowledged would be lost without a word: then nothing is
opened. Owns that look, in time proportional to the log. Not here: the check of the file (integrity).
An encrypted database's log has the same frames.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import StoreDamaged
from store.file import integrity

MAGIC: Final = 0x377F0682  # the last bit: whether checksums are of big-endian words
HEADER: Final = 32  # bytes
FRAME: Final = 24  # before each page
PAGE: Final = 4096  # of all our databases
SIZES: Final = tuple(1 << n for n in range(9, 17))  # of pages, that SQLite takes
MASK: Final = 0xFFFFFFFF
BATCH_FRAMES: Final = 512  # frames
PAIRS: Final = 16  # of words, after which a sum of 32 bits has not grown over 64 yet

Sums = tuple[int, int]
Log = bytes | mmap


class TornLog(NamedTuple):
    offset: int  # the byte at which what can be read ends
    commits: int  # transactions behind it


def check(database: Path) -> None:
    """Before SQLite opens it. Raises StoreDamaged, and leaves the note."""
    log = database.with_name(database.name + "-wal")
    if not log.exists() or log.stat().st_size <= HEADER:
        return
    with log.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as raw:
        torn = look(raw)
    if torn is not None:
        integrity.write_note(database, f"its log {log.name} is broken at byte {torn.offset}")
        raise StoreDamaged(
            f"{log} is damaged at byte {torn.offset}: {torn.commits} writes behind it cannot be read, and SQLite would "
            "overwrite them. Nothing was changed. Copy the file first; then `truncate -s "
            f"{torn.offset} {log}` goes on with what was stored before, or `rlproxy restore` with a backup."
        )


def look(raw: Log) -> TornLog | None:
    """None where the log is whole, or only its last transaction is not."""
    magic, size = _number(raw, 0), _number(raw, 8)
    order = "big" if magic & 1 else "little"
    sums = _sums(raw[:24], (0, 0), order)
    if sums != (_number(raw, 24), _number(raw, 28)) or magic | 1 != MAGIC | 1 or size not in SIZES:
        return _torn(raw, HEADER, raw[HEADER + 8 : HEADER + 16], PAGE, 0)  # SQLite takes nothing of it
    good = HEADER
    from_first, from_second = (_sums(bytes(8 + size), sums, order) for sums in ((1, 0), (0, 1)))
    for offset, (first, second) in _frames(raw, FRAME + size, order):
        sums = (
            (from_first[0] * sums[0] + from_second[0] * sums[1] + first) & MASK,
            (from_first[1] * sums[0] + from_second[1] * sums[1] + second) & MASK,
        )
        if raw[offset + 8 : offset + 16] != raw[16:24] or sums != (
            _number(raw, offset + 16),
            _number(raw, offset + 20),
        ):
            return _torn(raw, offset, raw[16:24], size, good)
        if _number(raw, offset + 4):  # the last frame of a transaction
            good = offset + FRAME + size
    return None


def _frames(raw: Log, length: int, order: str) -> Iterator[tuple[int, Sums]]:
    """Each frame's place, and its checksum as if it were the first."""
    ends = len(raw) - (len(raw) - HEADER) % length
    for first in range(HEADER, ends, BATCH_FRAMES * length):
        block = raw[first : min(ends, first + BATCH_FRAMES * length)]
        yield from zip(range(first, ends, length), _each(block, length, order), strict=False)


def _each(block: bytes, length: int, order: str) -> list[Sums]:
    """The checksums of many frames: the same word of all of them is one number, and one addition adds all. Word by
    word and frame by frame a log of 40 MB takes seconds."""
    words = array("I", block)
    if order == "big":
        words.byteswap()
    step = length // 4
    lanes = (len(words) // step + 1) // 2  # of 64 bits, of which every second frame has one
    mask = int.from_bytes((MASK.to_bytes(4, "little") + bytes(4)) * lanes, "little")
    places = [0, 1, *range(FRAME // 4, step)]
    sums = [[0, 0], [0, 0]]  # of the even frames, and of the odd ones
    for n, place in enumerate(range(0, len(places), 2), 1):
        pair = [int.from_bytes(words[offset::step].tobytes(), "little") for offset in places[place : place + 2]]
        for odd, lane_sums in enumerate(sums):
            lane_sums[0] += (pair[0] >> 32 * odd & mask) + lane_sums[1]
            lane_sums[1] += (pair[1] >> 32 * odd & mask) + lane_sums[0]
            if n % PAIRS == 0:
                lane_sums[:] = [value & mask for value in lane_sums]
    even, odds = ([_unlaned(value & mask, lanes) for value in lane_sums] for lane_sums in sums)
    frame_sums = zip(zip(*even, strict=True), zip(*odds, strict=True), strict=True)
    return [frame_sum for frame_pair in frame_sums for frame_sum in frame_pair][: len(words) // step]


def _unlaned(sums: int, lanes: int) -> array[int]:
    words = array("I", sums.to_bytes(8 * lanes, "little"))
    if sys.byteorder == "big":
        words.byteswap()
    return words[::2]


def _torn(raw: Log, start: int, salts: bytes, size: int, good: int) -> TornLog | None:
    """Frames of this log have its salts; what is older has others. One transaction may be half written."""
    ends = [
        _number(raw, frame + 4) > 0
        for frame in range(start, len(raw) - FRAME - size + 1, FRAME + size)
        if raw[frame + 8 : frame + 16] == salts
    ]
    commits = sum(ends)
    is_half_written = bool(ends) and not ends[-1]
    return TornLog(good, commits) if commits + is_half_written > 1 else None


def _sums(piece: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum, gone on with."""
    words = array("I", piece)
    if order != sys.byteorder:
        words.byteswap()
    first, second = sums
    pairs = iter(words)
    for even_word, odd_word in zip(pairs, pairs, strict=True):
        first = (first + even_word + second) & MASK
        second = (second + odd_word + first) & MASK
    return first, second


def _number(raw: Log, offset: int) -> int:
    return int.from_bytes(raw[offset : offset + 4], "big")
