"""The process that decodes one picture: its bytes in, a line of JSON and a thumbnail out.

    python -I program.py MEMORY_BYTES SECONDS PIXELS FOLDER_OF_PILLOW

Whatever the bytes are, it takes so much memory and time and no more, writes no file, and starts no process. The
thumbnail is encoded anew from pixels: nothing of the original's bytes, metadata, or trailing data is in it. No module
of rlproxy is loaded here. Not here: who starts and kills it (decoder).
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from typing import Any

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
SIDE = 512  # pixels of a thumbnail's longer side
QUALITY = 82  # of its JPEG
WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # modes with two bytes a pixel


class RefusedImage(Exception):
    """Why this picture is not decoded, in a few words."""


def main(memory: str, seconds: str, pixels: str, folder: str) -> None:
    _bound(int(memory), int(seconds))
    sys.path.append(folder)
    data = sys.stdin.buffer.read()
    try:
        answer, thumbnail = decode(data, int(pixels))
    except RefusedImage as error:
        answer, thumbnail = {"reason": str(error)}, b""
    except MemoryError:
        answer, thumbnail = {"reason": "decoding it takes more memory than images.memory_mb"}, b""
    except Exception as error:  # whatever a decoder says of bytes that are not a picture
        answer, thumbnail = {"reason": f"it cannot be decoded: {_printable(error)}"}, b""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + thumbnail)


def decode(data: bytes, most_pixels: int) -> tuple[dict[str, Any], bytes]:
    """Format and size of a picture, and its thumbnail as JPEG. Raises RefusedImage, and what Pillow raises."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = most_pixels
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise RefusedImage("it is not a PNG, JPEG, GIF, or WebP") from None
    except Image.DecompressionBombError:
        raise RefusedImage(f"it has over {2 * most_pixels} pixels (images.max_pixels)") from None
    width, height = image.size
    if width * height > most_pixels:
        raise RefusedImage(f"it has {width * height} pixels, more than images.max_pixels")
    image.load()  # all of it: a picture that breaks off is refused
    answer = {"format": image.format, "width": width, "height": height}
    small = _flat(image)
    small.thumbnail((SIDE, SIDE))
    small = ImageOps.exif_transpose(small)
    out = io.BytesIO()
    small.convert("RGB").save(out, "JPEG", quality=QUALITY)
    return answer, out.getvalue()


def _flat(image: Any) -> Any:
    """The picture on white, with its orientation still to be applied."""
    from PIL import Image

    orientation = image.getexif()
    if image.mode in WIDE:
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    if image.mode in ("P", "PA", "LA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGB", image.size, "white")
        ground.paste(image, mask=image.getchannel("A"))
        image = ground
    flat = image.convert("RGB")
    flat.info.clear()
    flat.getexif().update({tag: value for tag, value in orientation.items() if tag == 0x0112})
    return flat


def _bound(memory: int, seconds: int) -> None:
    os.nice(10)
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _printable(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return "".join(character if character.isprintable() else "?" for character in text)


if __name__ == "__main__":
    main(*sys.argv[1:])
