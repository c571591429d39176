"""Pictures among the blobs: what was found in each, and a small copy of it for the page.

Owns the table `images`: a row for each blob that begins as a picture does, once. It waits until a process of its own
has looked into it, and goes with its blob (a foreign key). Not here: the bytes themselves (blobs), who decodes them
(proxy.images), how many a prompt has (completions).
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from store.captured.rows import to_json, to_record
from store.file.part import StorePart
from store.image_records import DecodedImage, ImageInfo

_STARTS: Final = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8")
_RIFF, _WEBP, _WEBP_OFFSET = b"RIFF", b"WEBP", 8
# The same of base64 that is stored as it was written, in either of its alphabets.
_CODED_STARTS: Final = (b"iVBORw", b"/9j/", b"_9j_", b"R0lGOD", b"UklGR")

_INSERT: Final = "INSERT INTO images (blob, coded, sha256) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_WAITING: Final = """SELECT i.blob, i.coded, b.data FROM images i INDEXED BY images_waiting
CROSS JOIN blobs b ON b.hash = i.blob WHERE i.state = 'waiting' LIMIT 1"""
_INFO: Final = "i.state, i.sha256, i.size, i.format, i.width, i.height, i.reason"
# Of the last message of a prompt: a picture that somebody asks about stands there.
_OF_LAST_MESSAGES: Final = f"""SELECT c.id AS completion, {_INFO} FROM json_each(?) j
CROSS JOIN completions c ON c.id = j.value CROSS JOIN message_blobs m ON m.message = c.prompt_hash
CROSS JOIN images i ON i.blob = m.blob ORDER BY m.at"""  # noqa: S608  ours
_THUMBNAIL: Final = "SELECT i.thumbnail FROM images i WHERE i.sha256 = ? AND i.thumbnail IS NOT NULL LIMIT 1"
_IS_WAITING: Final = "SELECT 1 FROM images i WHERE i.sha256 = ? AND i.state = 'waiting' LIMIT 1"
_AT_ONCE: Final = 500  # values of one query
_HINDRANCE: Final = "has_image"
_ADMIT: Final = f"UPDATE completions SET untrainable = NULL WHERE untrainable = '{_HINDRANCE}'"  # noqa: S608  ours
_EXCLUDE: Final = f"UPDATE completions SET untrainable = '{_HINDRANCE}' WHERE images > 0 AND untrainable IS NULL"  # noqa: S608  ours
_COUNTS: Final = "SELECT i.state, count(*) AS count FROM images i GROUP BY i.state"


class WaitingImage(NamedTuple):
    """A picture that nobody has looked into."""

    blob: bytes
    data: bytes
    coded: bool  # False: `data` is base64


def note(db: sqlite3.Connection, blob: bytes, data: bytes, coded: bool) -> None:
    """The blob is stored, and new. Nothing is noted of one that does not begin as a picture."""
    if begins_as_image(data) if coded else data.startswith(_CODED_STARTS):
        db.execute(_INSERT, (blob, coded, hashlib.sha256(data).digest() if coded else None))


def begins_as_image(data: bytes) -> bool:
    """Tell whether these bytes begin as PNG, JPEG, GIF, or WebP do."""
    return data.startswith(_STARTS) or (
        data.startswith(_RIFF) and data[_WEBP_OFFSET : _WEBP_OFFSET + len(_WEBP)] == _WEBP
    )


def note_decoded(db: sqlite3.Connection, blob: bytes, image: DecodedImage) -> bool:
    """False where the picture was forgotten meanwhile: then nothing of it is stored."""
    changed = db.execute(
        """UPDATE images SET state = ?, sha256 = ?, size = ?, format = ?, width = ?, height = ?, reason = ?,
        thumbnail = ? WHERE blob = ?""",
        (
            "refused" if image.reason else "decoded", image.sha256, image.size, image.format, image.width,
            image.height, image.reason, image.thumbnail, blob,
        ),
    )  # fmt: skip
    return bool(changed.rowcount)


class ImageStore(StorePart):
    async def waiting(self) -> WaitingImage | None:
        """One that nobody has looked into."""
        row = await self._reader.row(_WAITING)
        return None if row is None else WaitingImage(row["blob"], row["data"], bool(row["coded"]))

    async def note_decoded(self, blob: bytes, image: DecodedImage) -> bool:
        return await self._writer.submit(lambda db: note_decoded(db, blob, image))

    async def by_sha256(self, hashes: Sequence[bytes]) -> dict[bytes, ImageInfo]:
        """Those of these that are here, by the sha256 of their bytes."""
        images: dict[bytes, ImageInfo] = {}
        for start in range(0, len(hashes), _AT_ONCE):
            some = hashes[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows = await self._reader.rows(f"SELECT {_INFO} FROM images i WHERE i.sha256 IN ({marks})", some)  # noqa: S608  ours
            images |= {row["sha256"]: to_record(ImageInfo, row) for row in rows}
        return images

    async def of_last_messages(self, ids: Sequence[str]) -> dict[str, list[ImageInfo]]:
        """The pictures in the last message of each prompt, by completion, in their order."""
        images: dict[str, list[ImageInfo]] = {}
        for row in await self._reader.rows(_OF_LAST_MESSAGES, (to_json(list(ids)),)):
            images.setdefault(row["completion"], []).append(to_record(ImageInfo, row))
        return images

    async def mark_trainable(self, trainable: bool) -> int:
        """Let completions whose only hindrance is a picture train, or not; how many that changed."""
        sql = _ADMIT if trainable else _EXCLUDE
        return await self._writer.submit(lambda db: db.execute(sql).rowcount)

    async def thumbnail(self, sha256: bytes) -> bytes | None:
        """JPEG; None where there is none (any more)."""
        row = await self._reader.row(_THUMBNAIL, (sha256,))
        return None if row is None else bytes(row["thumbnail"])

    async def is_waiting(self, sha256: bytes) -> bool:
        return await self._reader.row(_IS_WAITING, (sha256,)) is not None

    async def counts(self) -> dict[str, int]:
        """How many there are in each state."""
        return {row["state"]: row["count"] for row in await self._reader.rows(_COUNTS)}
