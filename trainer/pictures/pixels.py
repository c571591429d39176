"""The pixels of a picture, and which pictures servers and trainer see alike.

Bytes of strangers are decoded in a process of its own that runs this file, whatever they are:

    python -I pixels.py MEMORY_BYTES SECONDS PIXELS FOLDER_OF_PILLOW

Bytes in, a line of JSON and RGB out. It takes so much memory and time and no more, writes no file, and starts no
process. No module of rlproxy is loaded there. Not here: who starts and ends it (decoder).
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any, Final

FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
ORIENTATION: Final = 0x0112  # EXIF
UPRIGHT: Final = 1
MODES: Final = ("RGB", "RGBA", "L", "P", "1")  # of eight bits a channel or less
OPAQUE: Final = 255
NO_PILLOW: Final = "pictures need Pillow where runs train: pip install 'rlproxy[images]'"


class BadPicture(Exception):
    """A clause: why no sample with this picture can train."""


def pixels(data: bytes) -> Any:
    """The picture as Pillow's RGB image. Raises BadPicture where servers would not all show the same to a model."""
    image = _open(data)
    if getattr(image, "n_frames", 1) > 1:
        raise BadPicture("a picture moves, and servers differ in which frames they show")
    if image.getexif().get(ORIENTATION, UPRIGHT) != UPRIGHT:
        raise BadPicture("a picture is to be turned (EXIF), and not all servers do so")
    if image.mode not in MODES:
        raise BadPicture(f"a picture's colours are of a kind that servers read differently ({image.mode})")
    if _is_transparent(image):
        raise BadPicture("parts of a picture are transparent, and servers draw what is behind differently")
    return image.convert("RGB")


def display(data: bytes, most_pixels: int | None = None) -> Any:
    """The same of any picture, as the built-in server shows it: the first frame, turned as EXIF says, on white. Equal
    to `pixels` where that raises nothing. Raises BadPicture."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(_open(data, most_pixels))
    if not _is_transparent(image):
        return image.convert("RGB")
    image = image.convert("RGBA")
    ground = Image.new("RGB", image.size, "white")
    ground.paste(image, mask=image.getchannel("A"))
    return ground


def _open(data: bytes, most_pixels: int | None = None) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise BadPicture(NO_PILLOW) from None
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        size = image.width * image.height
        if most_pixels is None or size <= most_pixels:
            image.load()
            return image
    except MemoryError:
        raise
    except Exception as error:  # whatever a decoder says of bytes that are not a picture
        raise BadPicture(f"a picture cannot be decoded ({type(error).__name__})") from None
    raise BadPicture(f"a picture has {size:,} pixels, more than images.max_pixels")


def _is_transparent(image: Any) -> bool:
    if image.mode in ("RGBA", "LA", "PA"):
        alpha = image.getchannel("A").histogram()
        return bool(alpha[OPAQUE] < image.width * image.height)
    return "transparency" in image.info


def main(memory: str, seconds: str, most_pixels: str, folder: str) -> None:
    _bound(int(memory), int(seconds))
    sys.path.append(folder)
    data, rgb = sys.stdin.buffer.read(), b""
    try:
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = None  # ours is the bound
        image = display(data, int(most_pixels))
        answer, rgb = {"width": image.width, "height": image.height}, image.tobytes()
    except BadPicture as error:
        answer = {"reason": str(error)}
    except MemoryError:
        answer = {"reason": "decoding a picture takes more memory than images.memory_mb"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + rgb)


def _bound(memory: int, seconds: int) -> None:
    import resource

    os.nice(10)
    limits = {"CORE": 0, "FSIZE": 0, "AS": memory, "CPU": seconds, "NPROC": 0}
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    main(*sys.argv[1:])
