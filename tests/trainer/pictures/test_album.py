"""Ids of the pieces of pictures: each picture its own, and only where the server read these tokens."""

import pytest

from scripts.harness.pictures import picture
from tests.harness import seeing
from trainer.pictures.album import NO_PICTURES, Album
from trainer.pictures.pixels import BadPicture
from trainer.pictures.processor import PictureProcessor

RED, BLUE = picture(size=seeing.SIZE), picture(color=(0, 0, 200), size=seeing.SIZE)
NAMES = [seeing.name_of(RED), seeing.name_of(BLUE)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return seeing.make("idefics3", tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture
def album(model):
    return Album({seeing.name_of(data): data for data in (RED, BLUE)}, PictureProcessor(model), first_id=1000)


def test_pieces_are_numbered_once_and_by_their_hashes(album):
    album.number_all()
    first, second = sorted(NAMES)
    assert [name for name, _ in album.numbered] == [first, second]
    ids = album.expand("a<image>b", [first])
    assert [id for id in ids if id >= 1000] == [1000, 1001, 1002, 1003]
    assert [id for id in album.expand("<image>", [second]) if id >= 1000] == [1004, 1005, 1006, 1007]
    both = album.expand("<image>x<image><image>", [first, second, first])
    assert [id for id in both if id >= 1000] == [*range(1000, 1008), *range(1000, 1004)]
    assert album.are_in(ids) and not album.are_in((1, 2))


def test_a_captured_prompt_is_bound_where_its_tokens_are_those(album, model):
    ids = tuple(seeing.inputs(model, (RED, BLUE))["input_ids"][0].tolist())
    bound = album.bind(ids, NAMES)
    assert len(bound) == len(ids)
    changed = {index for index, (before, after) in enumerate(zip(ids, bound, strict=True)) if before != after}
    assert len({bound[index] for index in changed}) == 8 and len({ids[index] for index in changed}) == 1
    assert album.bind(ids, NAMES[::-1]) != bound, "by the order of the pictures"


def test_other_tokens_are_refused(album, model):
    ids = tuple(seeing.inputs(model, (RED,))["input_ids"][0].tolist())
    for wrong, reason in (
        (ids[:8] + ids[9:], "other tokens for picture 1 of 1"),
        (ids + ids, "more tokens of pictures than 1 of them have"),
        ((1, 2, 3), "other tokens for picture 1 of 1"),
    ):
        with pytest.raises(BadPicture, match=reason):
            album.bind(wrong, NAMES[:1])
    with pytest.raises(BadPicture, match="other tokens for picture 2 of 2"):
        album.bind(ids, NAMES)
    with pytest.raises(BadPicture, match="2 places for 1 pictures"):
        album.expand("<image><image>", NAMES[:1])
    with pytest.raises(BadPicture, match="did not come with the run"):
        album.bind(ids, ["00"])


def test_a_servers_own_marker(album):
    assert album.expand("a<m>b", NAMES[:1], "<m>") == album.expand("a<image>b", NAMES[:1])


def test_an_album_that_is_refused_says_why(model):
    album = Album({NAMES[0]: RED}, PictureProcessor(model), refusal="no reason")
    with pytest.raises(BadPicture, match="no reason"):
        album.bind((1,), NAMES[:1])
    with pytest.raises(BadPicture, match="did not come with the run"):
        NO_PICTURES.bind((1,), NAMES[:1])


def test_weights_without_a_processor(tmp_path):
    with pytest.raises(BadPicture, match="no processor that reads pictures"):
        PictureProcessor(tmp_path)


def test_a_server_that_puts_nothing_around_a_picture(tmp_path):
    """llama.cpp leaves out the blank lines that Gemma 3's processor has there: by the count it is seen."""
    model = seeing.make("gemma3", tmp_path / "model")
    album = Album({NAMES[0]: RED}, PictureProcessor(model), first_id=1000)
    around = album.expand("a<m>b", NAMES[:1], "<m>")
    bare = album.expand("a<m>b", NAMES[:1], "<m>", len(around) - 4)  # four bytes of blank lines
    assert [id for id in around if id not in bare] == [around[1]] * 4
    assert album.expand("a<m>b", NAMES[:1], "<m>", 99) == around, "neither has as many: the caller says so"
