"""One picture in a process of its own: what is found in it, and that nothing in it costs more than was allowed."""

from __future__ import annotations

import asyncio
import hashlib
import io
from pathlib import Path

import psutil
import pytest
from PIL import Image

from config.sections import Images
from proxy.images.decoder import Decoder
from scripts.harness import pictures
from scripts.harness.pictures import HTML, hostile, picture


@pytest.mark.parametrize("format", pictures.FORMATS)
async def test_a_sound_picture_has_a_size_and_a_thumbnail(format: str) -> None:
    data = picture(format, size=(1200, 900))
    decoded = await Decoder(Images()).decode(data)
    assert decoded.reason is None
    assert (decoded.format, decoded.width, decoded.height, decoded.size) == (format, 1200, 900, len(data))
    assert decoded.sha256 == hashlib.sha256(data).digest() and decoded.thumbnail is not None
    thumbnail = Image.open(io.BytesIO(decoded.thumbnail))
    assert (thumbnail.format, thumbnail.size, thumbnail.mode) == ("JPEG", (512, 384), "RGB")
    red, green, _ = thumbnail.getpixel((400, 200))
    assert red > 180 and green < 60


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
async def test_every_kind_of_pixels(mode: str) -> None:
    out = io.BytesIO()
    Image.new(mode, (20, 10)).save(out, "JPEG" if mode == "CMYK" else "PNG")
    decoded = await Decoder(Images()).decode(out.getvalue())
    assert decoded.reason is None and decoded.thumbnail is not None


async def test_what_is_clear_is_white_and_a_turned_photo_stands() -> None:
    out = io.BytesIO()
    Image.new("RGBA", (20, 10), (0, 0, 0, 0)).save(out, "PNG")
    decoded = await Decoder(Images()).decode(out.getvalue())
    assert decoded.thumbnail is not None
    assert Image.open(io.BytesIO(decoded.thumbnail)).getpixel((5, 5)) == (255, 255, 255)
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a place that nobody should know"
    Image.new("RGB", (20, 10)).save(out, "JPEG", exif=exif)
    decoded = await Decoder(Images()).decode(out.getvalue())
    assert decoded.thumbnail is not None and b"nobody should know" not in decoded.thumbnail
    assert Image.open(io.BytesIO(decoded.thumbnail)).size == (10, 20)


async def test_nothing_of_a_second_kind_is_in_the_thumbnail() -> None:
    for number in range(8):
        decoded = await Decoder(Images()).decode(pictures._two_kinds(pictures.random.Random(number), number))
        assert decoded.thumbnail is None or not any(
            mark in decoded.thumbnail for mark in (b"<html", b"<svg", b"PK\x03\x04", b"alert")
        )
    assert HTML in picture("PNG") + HTML


@pytest.mark.parametrize("data", [b"", b"x", b"<svg/>", HTML, b"%PDF-1.7", b"BM" + bytes(99), b"II*\0" + bytes(99)])
async def test_other_kinds_are_refused(data: bytes) -> None:
    decoded = await Decoder(Images()).decode(data)
    assert decoded.thumbnail is None and decoded.reason == "it is not a PNG, JPEG, GIF, or WebP"


async def test_limits_of_bytes_and_pixels() -> None:
    data = picture(size=(200, 100))
    decoded = await Decoder(Images(max_bytes=1024)).decode(data + bytes(2000))
    assert decoded.reason is not None and "images.max_bytes" in decoded.reason
    decoded = await Decoder(Images(max_pixels=19_999)).decode(data)
    assert decoded.reason == "it has 20000 pixels, more than images.max_pixels" and decoded.thumbnail is None
    assert (await Decoder(Images(max_pixels=20_000)).decode(data)).reason is None
    decoded = await Decoder(Images(max_pixels=9_999)).decode(data)
    assert decoded.reason is not None and "images.max_pixels" in decoded.reason


async def test_memory_and_time_are_bounded() -> None:
    data = picture("PNG", size=(6000, 6000))
    decoded = await Decoder(Images(memory_mb=256)).decode(data)
    assert decoded.reason is not None and "images.memory_mb" in decoded.reason
    decoded = await Decoder(Images(timeout_s=0.001)).decode(data)
    assert decoded.reason == "decoding it takes more than 0.001 s (images.timeout_s)"
    assert (await Decoder(Images()).decode(picture())).reason is None


async def test_a_process_that_dies_is_said_and_none_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    for body, reason in (
        ("import os; os.abort()", "by signal 6"),
        ("print('x' * 3_000_000)", "signal 9"),
        ('print(\'{"format": "PNG"}\')', "with status 0"),
        ("print('[]')", "with status 0"),
    ):
        program.write_text(body)
        monkeypatch.setattr("proxy.images.decoder.PROGRAM", program)
        decoded = await Decoder(Images(timeout_s=20)).decode(picture())
        assert decoded.reason is not None and reason in decoded.reason, body
    assert not [p for p in psutil.Process().children() if str(program) in " ".join(p.cmdline())]


async def test_cancelled_it_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(600)")
    monkeypatch.setattr("proxy.images.decoder.PROGRAM", program)
    task = asyncio.create_task(Decoder(Images(timeout_s=600)).decode(picture()))
    while not (children := [p for p in psutil.Process().children() if str(program) in " ".join(p.cmdline())]):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


async def test_hostile_ones_end_within_their_bounds() -> None:
    """Two of each kind; `python -m scripts.bench.hostile_images` sends 200 through a whole proxy."""
    bounds = Images(memory_mb=512, timeout_s=30)
    for image in hostile(20):
        decoded = await Decoder(bounds).decode(image.data)
        assert (decoded.thumbnail is None) == (decoded.reason is not None), image.kind
        assert decoded.reason is None or "signal 11" not in decoded.reason, image.kind
