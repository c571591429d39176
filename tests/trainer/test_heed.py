"""The preset gives way to what samples bring: the rate. The rest is seen in whole runs (test_loop, test_teacher)."""

from types import SimpleNamespace

import pytest

from config import presets
from trainer import heed
from trainer.progress import Progress

BALANCED = presets.resolve("balanced", {})


def lessons(liked=0, disliked=0, *, taught=0, credited=True):
    rated = [SimpleNamespace(taught=False, credited=credited, way=way) for way in [1.0] * liked + [-1.0] * disliked]
    return rated + [SimpleNamespace(taught=True, credited=False, way=0.0)] * taught


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (lessons(6, 22, credited=False), 1.0),
        (lessons(6, 22), 0.4),
        (lessons(14, 14), 0.4),
        (lessons(21, 7), 0.2),
        (lessons(27, 1), 0.4 * 2 / 28),
        (lessons(taught=9), 0.5),
        (lessons(5, 5, taught=10), 0.45),
    ],
)
def test_the_rate_falls_where_more_is_said_a_token_and_where_little_is_disliked(tmp_path, given, share):
    with Progress(tmp_path) as progress:
        paced = heed.pace(BALANCED, given, progress)
    assert paced.learning_rate == pytest.approx(BALANCED.learning_rate * share)
    assert ("are disliked" in (tmp_path / "progress.jsonl").read_text()) is (share < 0.4)
