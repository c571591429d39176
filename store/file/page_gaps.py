"""Bytes of deleted rows in places of the database file that SQLite has given up and not overwritten.

When SQLite spreads the rows of a page over its neighbours, it writes the page anew from its end. What stood between the
page's directory and the first row stays: copies of rows that are elsewhere now. `secure_delete` overwrites a row where
it is deleted, and not such copies. So the writer overwrites those gaps itself, once what was forgotten is gone. Nothing
in SQLite reads them, and a kill in the middle leaves a page as whole as it was. A page whose rows do not add up is left
alone: what its directory does not name may be rows all the same. `VACUUM` would do the same with twice the space,
several times the time, and nobody writing meanwhile.

Owns those bytes. Not here: when it is done (store, writer). Not done in an encrypted file, whose pages only SQLCipher
writes: there they are as unreadable as the rest.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from store.errors import NotOverwritten

SLICE: Final = 4096  # pages at once: others may write in between
LEAVES: Final = (10, 13)  # the first byte of a page of a tree
INNER: Final = (2, 5)
HEADER: Final = 100  # bytes of the file's own before the first page's
# An overflow page begins with the number of the next one: with fewer pages than this, its first byte is 0 or 1.
MOST_PAGES: Final = 2 << 24


class Gaps:
    """Used by the writer's thread alone; closed when no connection of this process has the file open any more.

    Whoever closes any handle of a file drops all locks that its process has on it, SQLite's too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def overwrite(self, db: sqlite3.Connection, first: int) -> int | None:
        """One slice, from this page on (the first is 0); where to go on, None at the end.

        `db` is the writer's, in no transaction. Raises NotOverwritten, `errors()`: another program is in the way.
        """
        (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        db.execute("BEGIN IMMEDIATE")
        try:
            log = self._path.with_name(self._path.name + "-wal")
            if busy or log.stat().st_size:
                raise NotOverwritten(
                    f"What was forgotten is deleted, but somebody reads {self._path}, so that copies in gaps of it "
                    "were not overwritten yet; that is tried again."
                )
            return self._slice(first)
        except OSError as error:
            raise NotOverwritten(
                f"What was forgotten is deleted, but copies in gaps of {self._path} could not be overwritten "
                f"({error}); that is tried again."
            ) from error
        finally:
            db.execute("ROLLBACK")
            db.execute("PRAGMA shrink_memory")  # pages in memory still have what was overwritten

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _slice(self, first: int) -> int | None:
        if self._handle is None:
            self._handle = os.open(self._path, os.O_RDWR)
        header = os.pread(self._handle, HEADER, 0)
        size = int.from_bytes(header[16:18], "big")
        size = 65536 if size == 1 else size
        count = os.fstat(self._handle).st_size // size
        if count >= MOST_PAGES:
            raise OSError(f"it has {count} pages, and only up to {MOST_PAGES} can be told apart")
        block = os.pread(self._handle, SLICE * size, first * size)
        for start in range(0, len(block) - size + 1, size):
            begin, end = gap(block, start, size - header[20], first_page=first == start == 0)
            if block.count(0, begin, end) == end - begin:
                continue
            if not adds_up(block[start : start + size], size - header[20], HEADER if first == start == 0 else 0):
                os.fsync(self._handle)
                raise OSError(f"page {first + start // size + 1} is not as SQLite writes one; it may be damaged")
            os.pwrite(self._handle, bytes(end - begin), first * size + begin)
        os.fsync(self._handle)
        return first + SLICE if first + SLICE < count else None


def gap(block: bytes, page_start: int, usable: int, *, first_page: bool = False) -> tuple[int, int]:
    """Where in `block` the gap of the page at `page_start` lies; nothing where it is not a page of a tree."""
    head = page_start + HEADER if first_page else page_start
    kind = block[head]
    if kind not in LEAVES and kind not in INNER:
        return page_start, page_start
    rows = int.from_bytes(block[head + 3 : head + 5], "big")
    content_start = int.from_bytes(block[head + 5 : head + 7], "big") or 65536
    begin = head + (8 if kind in LEAVES else 12) + 2 * rows
    return (
        (begin, page_start + content_start)
        if begin <= page_start + content_start <= page_start + usable
        else (page_start, page_start)
    )


def adds_up(page: bytes, usable: int, head: int = 0) -> bool:
    """Tell if rows, free blocks and lost bytes of a tree's page come to what its header says, as SQLite checks it."""
    kind, rows, content_start = page[head], _number(page, head + 3), _number(page, head + 5) or 65536
    first = head + (8 if kind in LEAVES else 12)
    try:
        places = [_number(page, first + 2 * n) for n in range(rows)]
        sizes = [_row(page, kind, place, usable) for place in places]
        free, offset = 0, _number(page, head + 1)
        while offset:
            following, length = _number(page, offset), _number(page, offset + 2)
            if not offset < offset + length <= usable or (following and following <= offset):
                return False
            free, offset = free + length, following
    except IndexError:
        return False
    return (
        all(place >= content_start for place in places) and sum(sizes) + free + page[head + 7] == usable - content_start
    )


def _row(page: bytes, kind: int, offset: int, usable: int) -> int:
    """How many bytes a row has in its page; what is long goes on in others."""
    start, offset = offset, offset + (4 if kind in INNER else 0)
    length, offset = _varint(page, offset)
    if kind == INNER[1]:  # the number is the row's, and there is no more of it here
        return offset - start
    if kind == LEAVES[1]:
        _, offset = _varint(page, offset)
    most = usable - 35 if kind == LEAVES[1] else (usable - 12) * 64 // 255 - 23
    if length > most:
        least = (usable - 12) * 32 // 255 - 23
        part = least + (length - least) % (usable - 4)
        length = (part if part <= most else least) + 4
    return max(4, offset - start + length)


def _varint(page: bytes, offset: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where the next byte is."""
    value = 0
    for _ in range(8):
        byte, offset = page[offset], offset + 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset
    return value << 8 | page[offset], offset + 1


def _number(page: bytes, offset: int) -> int:
    return page[offset] << 8 | page[offset + 1]
