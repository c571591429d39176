"""Pictures for tests and measurements: sound ones, and hostile ones of every kind that decoders have met.

All are made here, from bytes, the same ones each time. Some are bombs: of pixels, chunks, frames, or scans. Some break
off, or were changed. Others are heads without bodies, files of two kinds, or files that only begin as pictures do.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

PNG: Final = b"\x89PNG\r\n\x1a\n"
FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
HTML: Final = b"<html><script>document.title='run'</script></html>"
SVG: Final = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


class HostileImage(NamedTuple):
    kind: str
    data: bytes


def picture(
    format: str = "PNG", color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (64, 48)
) -> bytes:
    """A sound picture: one colour with a stripe."""
    from PIL import Image

    image = Image.new("RGB", size, color)
    image.paste((255 - color[0], 255 - color[1], 255 - color[2]), (0, 0, size[0] // 4, size[1]))
    return _saved(image, format)


def hostile(count: int, seed: int = 1) -> list[HostileImage]:
    """So many, of each kind about equally many."""
    makers = [_pixels, _pixels_and_data, _chunks, _breaks_off, _changed, _heads, _two_kinds, _not_pictures, _frames]
    streams = [_stream(make, random.Random(seed)) for make in makers]
    streams.append(_stream(_scans, random.Random(seed)))
    return [next(streams[index % len(streams)]) for index in range(count)]


def _stream(make: Callable[[random.Random, int], bytes], draw: random.Random) -> Iterator[HostileImage]:
    number = 0
    while True:
        data = make(draw, number)  # no two are the same bytes: what is equal is decoded once
        yield HostileImage(make.__name__.strip("_").replace("_", " "), data + number.to_bytes(2, "big"))
        number += 1


def _pixels(draw: random.Random, number: int) -> bytes:
    """A head of very many pixels, with next to nothing behind it."""
    side = draw.choice([7_000, 20_000, 65_535, 2**20, 2**31 - 1])
    if number % 3 == 1:
        return b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + b"," + struct.pack(
            "<HHHHB", 0, 0, 65_535, 65_535, 0
        ) + b"\x02\x02D\x01\x00;"  # fmt: skip
    if number % 3 == 2:
        return _jpeg_of_size(65_500, 65_500)
    return png(side, draw.choice([side, 1]), zlib.compress(bytes(1000)))


def _pixels_and_data(draw: random.Random, number: int) -> bytes:
    """All of its pixels are there: zeros, which pack to a thousandth."""
    side = [3_000, 6_000, 8_000, 12_000][number % 4]
    packer = zlib.compressobj(9)
    row = bytes(1 + side)
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return png(side, side, rows, depth=8, color=0)


def _chunks(draw: random.Random, number: int) -> bytes:
    """Text and profiles that unpack to 100 MB."""
    bomb = zlib.compress(bytes(100_000_000), 9)
    name = [b"zTXt", b"iTXt", b"iCCP"][number % 3]
    body = {b"zTXt": b"k\0\0" + bomb, b"iTXt": b"k\0\x01\0\0\0" + bomb, b"iCCP": b"p\0\0" + bomb}[name]
    return png(8, 8, zlib.compress(bytes(8 * 25)), extra=chunk(name, body) * (1 + number % 2))


def _breaks_off(draw: random.Random, number: int) -> bytes:
    data = picture(FORMATS[number % 4], size=(300, 200))
    return data[: draw.randrange(8, len(data) - 8)]


def _changed(draw: random.Random, number: int) -> bytes:
    data = bytearray(picture(FORMATS[number % 4], size=(300, 200)))
    for _ in range(draw.choice([1, 10, 100])):
        data[draw.randrange(12, len(data))] = draw.randrange(256)
    return bytes(data)


def _heads(draw: random.Random, number: int) -> bytes:
    """The first bytes of a picture, and noise."""
    head = [PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"RIFF\x10\0\0\0WEBPVP8X"][number % 5]
    return head + draw.randbytes(draw.choice([0, 10, 1000, 100_000]))


def _two_kinds(draw: random.Random, number: int) -> bytes:
    """A sound picture that is a page, a script, or an archive, too."""
    tail = [HTML, SVG, b"PK\x03\x04" + bytes(100), b"*/=1;alert(1)//"][number % 4]
    if number % 2:
        return picture(FORMATS[number % 4]) + tail
    return png(8, 8, zlib.compress(bytes(8 * 25)), extra=chunk(b"tEXt", b"Comment\0" + tail))


def _not_pictures(draw: random.Random, number: int) -> bytes:
    """Files that no model reads, behind the head of a picture, or bare."""
    body = [SVG, HTML, b"%PDF-1.7\n" + bytes(200), b"\x7fELF" + bytes(200), b"II*\0" + bytes(200), b"BM" + bytes(200)]
    return (b"\xff\xd8\xff" if number % 2 else PNG) + body[number % len(body)]


def _frames(draw: random.Random, number: int) -> bytes:
    """An animation of thousands of frames."""
    frame = b"," + struct.pack("<HHHHB", 0, 0, 64, 64, 0) + b"\x02\x02D\x01\x00"
    colors = b"\0\0\0\xff\xff\xff"
    return b"GIF89a" + struct.pack("<HHBBB", 64, 64, 0x80, 0, 0) + colors + frame * draw.choice([1_000, 50_000]) + b";"


def _scans(draw: random.Random, number: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again: each goes over all of its pixels."""
    from PIL import Image

    side = 2_000
    data = _saved(Image.effect_noise((64, 64), 50).resize((side, side)), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    end = data.rindex(b"\xff\xd9")
    return data[:end] + data[start:end] * [20, 200][number % 2] + data[end:]


def png(width: int, height: int, packed: bytes, *, depth: int = 8, color: int = 2, extra: bytes = b"") -> bytes:
    """A PNG of these packed rows."""
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return PNG + chunk(b"IHDR", head) + extra + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _jpeg_of_size(width: int, height: int) -> bytes:
    data = bytearray(picture("JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def _saved(image: object, format: str, **options: object) -> bytes:
    from PIL import Image

    assert isinstance(image, Image.Image)
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()
