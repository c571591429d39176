"""Answers that ended while the database was away, on this relay's own disk, until they are delivered.

Owns the file: one line an answer, which is on the disk when `append` returns. A line that a kill has cut was never
acknowledged, and is left out. Nothing is delivered twice: a completion has one id, and the file is emptied only once
all of it was delivered. Not here: what the database makes of a line (deliveries), when it is back (captures).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from store.errors import StoreError, StoreFull
from store.file import conversion
from store.postgres.spool_lines import Answer, decode, encode

log = structlog.get_logger()

NAME: Final = "rlproxy.spool"  # in the home
REFUSED: Final = "rlproxy.refused"  # beside it: lines that the database refuses for what they are
BATCH_BYTES: Final = 1 << 22  # of one delivery


class SpooledAnswers(NamedTuple):
    """A few answers of the spool, in their order."""

    answers: list[Answer]
    lines: list[bytes]
    end: int  # the byte of the file after them


class Spool:
    def __init__(self, home: Path) -> None:
        """Blocking. Raises StoreError. The last line goes where a kill has cut it."""
        self._path = home / NAME
        self.refused_file = home / REFUSED
        self._waiting: list[tuple[list[str], bytes, asyncio.Future[None]]] = []  # ids, lines, who waits
        self._writing: asyncio.Task[None] | None = None
        self.ids: set[str] = set()  # of answers that wait here
        try:
            is_new = not self._path.exists()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self.size = self._sound_size()
            os.ftruncate(self._file, self.size)
            if is_new:
                conversion.sync(home)
            # By their hashes: a delivery that breaks off comes again, and sets nothing aside twice.
            is_there = self.refused_file.exists()
            self._refused = set(map(_hash, self.refused_file.read_bytes().splitlines(True))) if is_there else set()
        except OSError as error:
            raise StoreError(f"{self._path} cannot be opened ({error}); nothing was changed.") from error
        self.delivered = 0  # bytes

    @property
    def refused(self) -> int:
        """Answers that are in the file of those."""
        return len(self._refused)

    @property
    def is_empty(self) -> bool:
        return self.delivered >= self.size and not self._waiting and self._writing is None

    @property
    def waiting_bytes(self) -> int:
        return self.size - self.delivered

    def _sound_size(self) -> int:
        """Bytes up to the end of the last whole line; ids are noted. A line that cannot be read, as of another
        rlproxy, was acknowledged all the same: it stays."""
        size = 0
        with open(os.dup(self._file), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                if (answer := _read(line)) is not None:
                    self.ids.add(answer[0].id)
        return size

    async def append(self, answers: Sequence[Answer]) -> None:
        """On this disk when it returns; many at once share one fsync. Raises StoreFull, StoreError."""
        try:
            lines = await asyncio.to_thread(lambda: b"".join(_line(answer) for answer in answers))
        except (TypeError, ValueError) as error:  # as half a character in a text: the database would refuse it, too
            raise StoreError(f"This cannot be stored: {error}.") from error
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(([new.id for new, _ in answers], lines, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="spool")
        await asyncio.shield(stored)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                error = await asyncio.to_thread(self._write, b"".join(lines for _, lines, _ in batch))
                for ids, _, stored in batch:
                    if error is None:
                        self.ids.update(ids)
                    if stored.done():
                        continue
                    if error is None:
                        stored.set_result(None)
                    else:
                        stored.set_exception(error)
        finally:
            self._writing = None

    def _write(self, text: bytes) -> StoreError | None:
        try:
            written = os.pwrite(self._file, text, self.size)
            while written < len(text):
                written += os.pwrite(self._file, text[written:], self.size + written)
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self.size)  # or the next line would go on with half of this one
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return StoreFull(
                    "The database is away and this relay's disk is full, so this was not stored; free some space."
                )
            return StoreError(f"The database is away and {self._path} takes nothing ({error}); this was not stored.")
        self.size += len(text)
        return None

    async def next(self) -> SpooledAnswers:
        """The oldest that were not delivered, a few at once."""
        return await asyncio.to_thread(self._next)

    def _next(self) -> SpooledAnswers:
        answers: list[Answer] = []
        lines: list[bytes] = []
        end, last = self.delivered, self.size
        with open(os.dup(self._file), "rb") as file:
            file.seek(end)
            while end < last and end - self.delivered < BATCH_BYTES:
                line = file.readline()
                end += len(line)
                answer = _read(line)
                if answer is None:
                    self._keep_refused(line, "it cannot be read: it is damaged, or of another rlproxy")
                    continue
                answers.append(answer)
                lines.append(line)
        return SpooledAnswers(answers, lines, end)

    async def note_delivered(self, batch: SpooledAnswers) -> None:
        """The database has these. The file is emptied once it has all."""
        self.ids.difference_update(new.id for new, _ in batch.answers)
        self.delivered = batch.end
        if self.delivered == self.size and self._writing is None:
            os.ftruncate(self._file, 0)
            self.delivered = self.size = 0

    def keep_refused(self, batch: SpooledAnswers, reason: str) -> None:
        """The database refuses these for what they are: they are set aside, and nothing behind them waits."""
        for line in batch.lines:
            self._keep_refused(line, reason)

    def _keep_refused(self, line: bytes, reason: str) -> None:
        if (mark := _hash(line)) in self._refused:
            return
        with os.fdopen(os.open(self.refused_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._refused.add(mark)
        log.error("an answer of the spool is not delivered", reason=reason, kept=str(self.refused_file))

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        os.close(self._file)


def _hash(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def _line(answer: Answer) -> bytes:
    text = encode(answer)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(line: bytes) -> Answer | None:
    """None where the line is not what was written."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        return decode(text) if int(checksum, 16) == zlib.crc32(text) else None
    except (ValueError, KeyError, TypeError):
        return None
