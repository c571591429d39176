"""Pictures of strangers in a process of their own: what comes back, and what ends it."""

import hashlib

import pytest

from config.sections import Images
from scripts.harness.pictures import hostile, picture, png
from trainer.pictures import decoder as decoder_module
from trainer.pictures.decoder import PictureDecoder
from trainer.pictures.pixels import BadPicture, display


async def test_pixels_come_back_as_they_are():
    decoder = PictureDecoder(Images())
    for format in ("PNG", "JPEG", "GIF", "WEBP"):
        data = picture(format)
        name, image = await decoder.decode(data)
        assert name == hashlib.sha256(data).hexdigest()
        assert image.tobytes() == display(data).tobytes()


async def test_one_that_comes_again_is_decoded_once(monkeypatch):
    decoder = PictureDecoder(Images())
    first = (await decoder.decode(picture()))[1]
    assert (await decoder.decode(picture()))[1] is first
    monkeypatch.setattr(decoder_module, "REMEMBERED", 1)
    await decoder.decode(picture("JPEG"))
    assert (await decoder.decode(picture()))[1] is not first


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (Images(max_bytes=1024), "more than images.max_bytes"),
        (Images(max_pixels=100), "more than images.max_pixels"),
        (Images(timeout_s=0.01), r"images\.timeout_s"),
    ],
)
async def test_bounds_are_named(bounds, reason):
    data = picture(size=(2000, 1500), format="JPEG")
    assert len(data) > 1024
    with pytest.raises(BadPicture, match=reason):
        await PictureDecoder(bounds).decode(data)


async def test_hostile_ones_end_in_a_sentence():
    decoder = PictureDecoder(Images(memory_mb=512, timeout_s=5.0))
    outcomes = []
    for each in hostile(30):
        try:
            await decoder.decode(each.data)
            outcomes.append(None)
        except BadPicture as error:
            outcomes.append(str(error))
    assert len(outcomes) == 30 and outcomes.count(None) < 25
    assert (await decoder.decode(picture()))[1].size == (64, 48)


async def test_a_bomb_costs_its_own_process():
    with pytest.raises(BadPicture, match=r"pixels|memory|decoded"):
        await PictureDecoder(Images()).decode(png(65_535, 65_535, b"x\x9c"))
