"""Which pictures servers and trainer see alike; the rest say why they do not train, and are shown all the same."""

import io

import pytest
from PIL import Image

from scripts.harness.pictures import HTML, picture
from trainer.pictures.pixels import BadPicture, display, pixels


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


def test_the_built_in_server_shows_the_same_wherever_servers_agree():
    for format in ("PNG", "JPEG", "GIF", "WEBP"):
        assert display(picture(format)).tobytes() == pixels(picture(format)).tobytes()


def test_it_shows_others_as_people_see_them():
    assert display(turned()).size == (4, 8)
    red = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    red.putpixel((1, 0), (0, 0, 0, 0))
    assert display(saved(red)).tobytes() == bytes((255, 0, 0, 255, 255, 255))
    frames = saved(Image.new("L", (8, 8), 7), "GIF", save_all=True, append_images=[Image.new("L", (8, 8), 9)])
    assert display(frames).getpixel((0, 0)) == (7, 7, 7)


@pytest.mark.parametrize(
    ("data", "reason"), [(HTML, "cannot be decoded"), (picture(size=(30, 30)), "900 pixels, more than images.max")]
)
def test_what_is_not_shown(data, reason):
    with pytest.raises(BadPicture, match=reason):
        display(data, most_pixels=800)
