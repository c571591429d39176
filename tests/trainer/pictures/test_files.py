"""Which pictures servers and trainer see alike; the rest say why they do not train."""

import base64
import hashlib
import io
import json

import pytest
from PIL import Image

from scripts.harness.pictures import HTML, picture
from trainer.io.encrypted_files import IN_THE_CLEAR, Seal
from trainer.io.run_folder import RunError
from trainer.pictures.files import BadPicture, pixels, read


def saved(image, format="PNG", **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_plain_one_becomes_rgb(format):
    image = pixels(picture(format))
    assert (image.mode, image.size) == ("RGB", (64, 48))


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA"])
def test_modes_that_have_one_reading(mode):
    assert pixels(saved(Image.new("RGB", (8, 8), (250, 0, 0)).convert(mode))).mode == "RGB"


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.new("RGB", (8, 4)), "JPEG", exif=exif)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (turned(), "turned"),
        (saved(Image.new("RGBA", (8, 8), (1, 2, 3, 100))), "transparent"),
        (saved(Image.new("P", (8, 8)), transparency=0), "transparent"),
        (saved(Image.new("CMYK", (8, 8)), "JPEG"), "colours"),
        (saved(Image.new("I;16", (8, 8))), "colours"),
        (saved(Image.new("L", (8, 8)), "GIF", save_all=True, append_images=[Image.new("L", (8, 8), 9)]), "moves"),
        (HTML, "cannot be decoded"),
        (picture()[:-30], "cannot be decoded"),
    ],
)
def test_what_servers_read_differently_does_not_train(data, reason):
    with pytest.raises(BadPicture, match=reason):
        pixels(data)


def written(folder, *rows):
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(data):
    name = hashlib.sha256(data).hexdigest()
    return {"sha256": name, "completions": ["rl-1"], "data": base64.b64encode(data).decode()}


def test_read_by_hash(tmp_path):
    assert read(tmp_path, IN_THE_CLEAR) == {}
    written(tmp_path, row(b"one"), row(b"two"))
    assert set(read(tmp_path, IN_THE_CLEAR).values()) == {b"one", b"two"}
    Seal(bytes(32)).write(tmp_path / "pictures.jsonl", (tmp_path / "pictures.jsonl").read_bytes())
    assert len(read(tmp_path, Seal(bytes(32)))) == 2


@pytest.mark.parametrize("change", [{"data": "dHdv"}, {"data": "?"}, {"data": None}, {"sha256": None}])
def test_one_that_is_not_what_it_says_ends_the_run(tmp_path, change):
    written(tmp_path, row(b"one") | change)
    with pytest.raises(RunError, match="line 1 of"):
        read(tmp_path, IN_THE_CLEAR)
