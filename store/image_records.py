"""Records of pictures in prompts, as they pass between the store and who uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ImageState = Literal["waiting", "decoded", "refused"]


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A picture as its decoder read it. One with a `reason` was refused, and has no thumbnail."""

    sha256: bytes | None  # of its bytes; None where they are not base64
    size: int  # bytes
    format: str | None = None  # PNG, JPEG, GIF, WEBP
    width: int | None = None  # pixels
    height: int | None = None
    thumbnail: bytes | None = None  # JPEG
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A picture as a page shows it."""

    state: ImageState
    sha256: bytes | None
    size: int | None
    format: str | None
    width: int | None
    height: int | None
    reason: str | None
