"""Base64 in messages, kept once and apart: pictures, sounds and files that come again with every turn.

Owns what is cut out of a body when it is stored, and put back when it is read. The bytes are the same, so nobody else
sees that a body was ever cut. A message's hash is that of its whole body. A blob goes when its last message goes (a
trigger).
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import aiosqlite

from store.captured import images

# Before the base64 of a data URL; of `input_audio` and blocks with a source; of files that are not said as URLs.
_MARKS: Final = (b";base64,", b'"data":"', b'"file_data":"')
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_BREAKS: Final = b"\\rn"  # a line end as JSON has it
LEAST: Final = 64  # bytes that are worth a row
CODED_BYTES: Final = 3 << 18  # bytes coded in one go: each holds up all other threads

PIECES: Final = """SELECT m.at, b.data, m.coded FROM message_blobs m JOIN blobs b ON b.hash = m.blob
WHERE m.message = ? ORDER BY m.at"""


class Piece(NamedTuple):
    offset: int  # where it goes in the body that is stored
    data: bytes
    coded: bool  # it is base64 in the body


def cut(body: bytes) -> tuple[bytes, list[Piece]]:
    """The body without its base64, and what that was."""
    if b";base64," not in body and b'data":"' not in body:  # as in nearly every one: none of the marks
        return body, []
    pieces: list[Piece] = []
    parts: list[bytes] = []
    length = position = 0
    for start, end in _encoded_spans(body):
        data = _bytes(body[start:end])
        if data is None:
            continue
        parts.append(body[position:start])
        length += start - position
        pieces.append(Piece(length, *data))
        position = end
    return (b"".join([*parts, body[position:]]), pieces) if pieces else (body, [])


def whole(body: bytes, pieces: Sequence[Piece]) -> bytes:
    """The body as it was before `cut`."""
    out: list[bytes] = []
    position = 0
    for piece in pieces:
        out.append(body[position : piece.offset])
        out += _encoded(piece.data) if piece.coded else [piece.data]
        position = piece.offset
    return b"".join([*out, body[position:]])


def store_pieces(db: sqlite3.Connection, message: bytes, pieces: Sequence[Piece]) -> None:
    """The message is stored already."""
    for piece in pieces:
        key = hashlib.blake2b(piece.data, digest_size=32).digest()
        if db.execute("INSERT INTO blobs VALUES (?, ?) ON CONFLICT DO NOTHING", (key, piece.data)).rowcount:
            images.note(db, key, piece.data, piece.coded)
        db.execute("INSERT INTO message_blobs VALUES (?, ?, ?, ?)", (message, piece.offset, key, piece.coded))


async def bodies(db: aiosqlite.Connection, stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """These bodies of messages that were cut, by hash, whole again."""
    whole_bodies = {}
    for hash, body in stored.items():
        pieces = [Piece(*row) for row in await db.execute_fetchall(PIECES, (hash,))]
        whole_bodies[hash] = await asyncio.to_thread(whole, body, pieces)
    return whole_bodies


def _encoded_spans(body: bytes) -> Iterator[tuple[int, int]]:
    """Where strings lie that may be base64, first to last: each ends with its quotation mark. No mark has a place in
    base64, so only the last one before that counts, and each byte is looked at a few times."""
    nexts = {mark: body.find(mark) for mark in _MARKS}
    end = 0
    while nexts := {mark: offset for mark, offset in nexts.items() if offset >= 0}:
        mark = min(nexts, key=lambda mark: nexts[mark])
        start = nexts[mark] + len(mark)
        nexts[mark] = body.find(mark, start)
        if end < start and (end := body.find(b'"', start)) < 0:
            return
        if end - start >= LEAST and not start <= nexts[mark] < end:
            yield start, end


def _bytes(text: bytes) -> tuple[bytes, bool] | None:
    """Bytes to store for this, and whether it was base64; None where it is text like any other."""
    if (data := _decoded(text)) is not None:
        return data, True
    # Broken into lines, without its padding, or in the letters of URLs: kept as it is written.
    return (text, False) if not text.translate(None, _LETTERS + _BREAKS) else None


def _encoded(data: bytes) -> Iterator[bytes]:
    return (
        binascii.b2a_base64(data[start : start + CODED_BYTES], newline=False)
        for start in range(0, len(data), CODED_BYTES)
    )


def _decoded(text: bytes) -> bytes | None:
    """None where encoding it again would not give the same text."""
    step, parts = CODED_BYTES // 3 * 4, []
    for start in range(0, len(text), step):
        piece = text[start : start + step]
        try:
            data = binascii.a2b_base64(piece, strict_mode=True)
        except binascii.Error:
            return None
        padded_within = piece.endswith(b"=") and start + step < len(text)
        if padded_within or binascii.b2a_base64(data, newline=False) != piece:
            return None
        parts.append(data)
    return b"".join(parts)
