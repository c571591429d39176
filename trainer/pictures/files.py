"""Pictures of a run folder: bytes by their sha256, and pixels.

Owns reading PICTURES and which pictures servers and trainer see alike. The proxy has decoded each in a process of its
own with bounds before it wrote the folder. Not here: who writes the file (proxy), tokens (processor).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from pathlib import Path
from typing import Any, Final

from trainer.io.encrypted_files import Seal
from trainer.io.run_folder import PICTURES, RunError, read_lines

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
ORIENTATION: Final = 0x0112  # EXIF
UPRIGHT: Final = 1
MODES: Final = ("RGB", "RGBA", "L", "P", "1")  # of eight bits a channel or less
OPAQUE: Final = 255
NO_PILLOW: Final = "pictures need Pillow where runs train: pip install 'rlproxy[images]'"


class BadPicture(Exception):
    """A clause: why no sample with this picture can train."""


def read(folder: Path, seal: Seal) -> dict[str, bytes]:
    """Bytes of a run's pictures by the sha256 of each, in hex. Raises RunError where one is not what its hash says."""
    pictures: dict[str, bytes] = {}
    for number, line in read_lines(folder / PICTURES, seal):
        try:
            name, data = str((line or {})["sha256"]), base64.b64decode((line or {})["data"], validate=True)
        except (KeyError, TypeError, binascii.Error):
            raise RunError(f"line {number} of {folder / PICTURES} is not a picture.") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise RunError(f"line {number} of {folder / PICTURES} holds another picture than its hash says.")
        pictures[name] = data
    return pictures


def pixels(data: bytes) -> Any:
    """The picture as Pillow's RGB image. Raises BadPicture where servers would not all show the same to a model."""
    try:
        from PIL import Image
    except ImportError:
        raise BadPicture(NO_PILLOW) from None
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        image.load()
    except Exception as error:  # whatever a decoder says of bytes that are not a picture
        raise BadPicture(f"a picture cannot be decoded ({type(error).__name__})") from None
    if getattr(image, "n_frames", 1) > 1:
        raise BadPicture("a picture moves, and servers differ in which frames they show")
    if image.getexif().get(ORIENTATION, UPRIGHT) != UPRIGHT:
        raise BadPicture("a picture is to be turned (EXIF), and not all servers do so")
    if image.mode not in MODES:
        raise BadPicture(f"a picture's colours are of a kind that servers read differently ({image.mode})")
    if "transparency" in image.info or (
        image.mode == "RGBA" and image.getchannel("A").histogram()[OPAQUE] < image.width * image.height
    ):
        raise BadPicture("parts of a picture are transparent, and servers draw what is behind differently")
    return image.convert("RGB")
