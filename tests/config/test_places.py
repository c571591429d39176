"""Places as a person writes them."""

import pytest

from config.places import PlaceAddress, parse


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local", PlaceAddress("local")),
        ("ssh://gpu", PlaceAddress("ssh", "gpu")),
        ("ssh://me@gpu.lan:2222/srv/runs/", PlaceAddress("ssh", "gpu.lan", "me", 2222, "/srv/runs")),
        ("slurm", PlaceAddress("slurm")),
        ("slurm:///scratch/me", PlaceAddress("slurm", folder="/scratch/me")),
        ("ssh://[::1]:22", PlaceAddress("ssh", "::1", "", 22)),
    ],
)
def test_places_that_are_taken(text, address):
    assert parse(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "there", "ssh://", "ssh://-oProxyCommand=x", "ssh://-l@host", "ssh://a b", "ssh://me:secret@host",
     "ssh://host:99999", "ssh://host/?a=b", "ssh://host/a%0Ab", "ftp://host", "slurm://host/x", "ssh://host;x"],
)  # fmt: skip
def test_what_is_not_a_place_is_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=r".+") as error:
        parse(text)
    assert "\n" not in str(error.value)
