"""Pictures among the parts of a message in chat form, and their bytes.

Owns which parts are pictures, and whether one came along (a `data:` URL) or is only named (an address, the id of a
file). Each text is read once. Not here: what the bytes are (decoder).
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

IMAGE_PARTS: Final = ("image_url", "image", "input_image")
_SCHEME: Final = "data:"
_BASE64: Final = ";base64"
_LONGEST_HEAD: Final = 256  # characters before the comma of a data URL
_ENDS: Final = (b"\r", b"\n", b" ", b"\t", rb"\r", rb"\n")  # of lines, and as JSON has them
_OTHER_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")


def image_urls(message: Mapping[str, Any]) -> Iterator[str | None]:
    """The URL of each picture; None where it is named in another way."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS:
            yield url_of(part)


def count_images(message: Mapping[str, Any]) -> int:
    return sum(1 for _ in image_urls(message))


def url_of(part: Mapping[str, Any]) -> str | None:
    """The URL of a picture's part."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    return url if isinstance(url, str) else None


def is_inline(url: str | None) -> bool:
    return url is not None and url[: len(_SCHEME)].lower() == _SCHEME


def inline_bytes(url: str | None) -> bytes | None:
    """The bytes of a `data:` URL in base64; None for any other."""
    if url is None or not is_inline(url):
        return None
    head, comma, _ = url[:_LONGEST_HEAD].partition(",")
    if not comma or not head.lower().endswith(_BASE64):
        return None
    try:
        return from_base64(url[len(head) + 1 :].encode("ascii"))
    except UnicodeEncodeError:
        return None


def from_base64(text: bytes) -> bytes | None:
    """Bytes of base64 in either alphabet, with line ends or without padding; None where it is not that."""
    for end in _ENDS:
        if end in text:
            text = text.replace(end, b"")
    text = text.translate(_OTHER_ALPHABET).rstrip(b"=")
    try:
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error:
        return None
