"""Pictures beside answers: small copies, encoded anew, never the file that somebody sent.

Owns which picture stands where, and its address. A picture that came along is named by the sha256 of its bytes. One
that is only named by an address is not fetched: the address is shown as text. Not here: decoding (proxy.images), other
parts of a message (filters).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from aiohttp import web

from proxy.core.errors import NotFound
from proxy.core.offload import off_loop
from proxy.images.decoder import NO_PILLOW
from proxy.images.examiner import ImageExaminer
from proxy.images.parts import IMAGE_PARTS, inline_bytes, is_inline, url_of
from proxy.web.pages.filters import MessagePart, parts
from store.image_records import ImageInfo
from store.records import CompletionSummary, Message
from store.store import Store

PATIENCE_S: Final = 5.0  # for a picture that was captured just now
SHOWN_URL: Final = 200  # characters of an address
MOST_SHOWN: Final = 8  # pictures of an answer in a list
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "content-disposition": "inline",
    "cross-origin-resource-policy": "same-origin",
}


class ShownPicture(NamedTuple):
    """A picture as a template draws it: by its address, or in words where there is none."""

    address: str
    words: str


class Pictures:
    def __init__(self, store: Store, examiner: ImageExaminer) -> None:
        self._store = store
        self._examiner = examiner

    async def thumbnail(self, request: web.Request) -> web.Response:
        """A JPEG. It waits a while for a picture that nobody has decoded yet."""
        try:
            sha256 = bytes.fromhex(request.match_info["sha256"])
        except ValueError:
            sha256 = b""
        thumbnail = await self._examiner.thumbnail(sha256, PATIENCE_S) if sha256 else None
        if thumbnail is None:
            raise NotFound("This picture is not here, or is not shown.")
        return web.Response(body=thumbnail, content_type="image/jpeg", headers=HEADERS)

    async def of_rows(self, rows: Sequence[CompletionSummary]) -> dict[str, list[ShownPicture]]:
        """The pictures in the last message of each, by the completion's id."""
        with_images = [row.id for row in rows if row.images]
        if not with_images:
            return {}
        images = await self._store.images.of_last_messages(with_images)
        return {id: [self._view(image) for image in some[:MOST_SHOWN]] for id, some in images.items()}

    async def talk(self, prompt: Sequence[Message]) -> list[list[MessagePart | ShownPicture]]:
        """The parts of each message, with its pictures."""
        hashes = await off_loop(sum(len(message.body) for message in prompt), _hashes, prompt)
        images = await self._store.images.by_sha256([hash for hash in hashes.values() if hash is not None])
        return [list(self._parts(message, hashes, images)) for message in prompt]

    def _parts(
        self, message: Message, hashes: Mapping[str, bytes | None], images: Mapping[bytes, ImageInfo]
    ) -> Iterator[MessagePart | ShownPicture]:
        urls = iter(_urls(message))
        for part in parts(message):
            if part.kind != "other" or part.text not in IMAGE_PARTS:
                yield part
                continue
            url = next(urls, None)
            if url is None or not is_inline(url):
                yield ShownPicture("", f"picture that was not fetched: {(url or 'named by an id')[:SHOWN_URL]}")
                continue
            sha256 = hashes.get(url)
            image = None if sha256 is None else images.get(sha256)
            yield ShownPicture("", "picture of another kind, not shown") if image is None else self._view(image)

    def _view(self, image: ImageInfo) -> ShownPicture:
        if image.state == "refused":
            return ShownPicture("", f"picture that is not shown: {image.reason}")
        if image.sha256 is None or (image.state == "waiting" and not self._examiner.is_installed):
            reason = "it is not decoded yet" if self._examiner.is_installed else NO_PILLOW
            return ShownPicture("", f"picture that is not shown: {reason}")
        size = f", {image.width} by {image.height}" if image.width else ""
        return ShownPicture(f"/page/images/{image.sha256.hex()}", f"Picture in the question{size}")


def _urls(message: Message) -> list[str | None]:
    """The URL of each picture of a stored message."""
    body: Any = orjson.loads(message.body)
    content = body.get("content") if isinstance(body, dict) else body
    return [
        url_of(part)
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and part.get("type") in IMAGE_PARTS and not isinstance(part.get("text"), str)
    ]


def _hashes(prompt: Sequence[Message]) -> dict[str, bytes | None]:
    """The sha256 of each picture that came along, by its URL; None for what is not base64."""
    hashes: dict[str, bytes | None] = {}
    for message in prompt:
        for url in _urls(message):
            if url is not None and is_inline(url) and url not in hashes:
                data = inline_bytes(url)
                hashes[url] = None if data is None else hashlib.sha256(data).digest()
    return hashes
