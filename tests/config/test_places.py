"""Places as a person writes them."""

import pytest

from config.places import PlaceAddress, parse, ray_resources
from config.sections import Train


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local", PlaceAddress("local")),
        ("ssh://gpu", PlaceAddress("ssh", "gpu")),
        ("ssh://me@gpu.lan:2222/srv/runs/", PlaceAddress("ssh", "gpu.lan", "me", 2222, "/srv/runs")),
        ("slurm", PlaceAddress("slurm")),
        ("slurm:///scratch/me", PlaceAddress("slurm", folder="/scratch/me")),
        ("ray://head", PlaceAddress("ray", "head", port=8265)),
        ("ray://10.0.0.7:8266/mnt/jobs", PlaceAddress("ray", "10.0.0.7", port=8266, folder="/mnt/jobs")),
        ("ssh://[::1]:22", PlaceAddress("ssh", "::1", "", 22)),
    ],
)
def test_places_that_are_taken(text, address):
    assert parse(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "there", "ssh://", "ssh://-oProxyCommand=x", "ssh://-l@host", "ssh://a b", "ssh://me:secret@host",
     "ssh://host:99999", "ssh://host/?a=b", "ssh://host/a%0Ab", "ftp://host", "slurm://host/x", "ssh://host;x", "ray://",
     "ray://me@head", "ray://head:0x1"],
)  # fmt: skip
def test_what_is_not_a_place_is_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=r".+") as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_what_a_job_of_ray_may_use():
    options = ("--num-gpus=1", "--num-cpus=0.5", "--memory=8000000000", "--resource=trainer:1", "--resource=a:b:2")
    assert ray_resources(options) == {
        "entrypoint_num_gpus": 1.0, "entrypoint_num_cpus": 0.5, "entrypoint_memory": 8_000_000_000,
        "entrypoint_resources": {"trainer": 1.0, "a:b": 2.0},
    }  # fmt: skip
    assert ray_resources(()) == {}


@pytest.mark.parametrize(
    "option", ["--num-gpus", "--num-gpus=", "--num-gpus=-1", "--num-gpus=nan", "--memory=inf", "--resource=1", "-i"]
)
def test_other_options_of_ray_are_refused_with_the_settings(option):
    with pytest.raises(ValueError, match="Ray takes --num-cpus=N"):
        Train(where="ray://head", where_options=(option,))
    assert Train(where="ssh://head", where_options=(option,)).where_options == (option,)
