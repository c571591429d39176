"""The preset gives way to what samples bring: the rate. The rest is seen in whole runs (test_loop, test_teacher)."""

from types import SimpleNamespace

import pytest

from config import presets
from trainer.io.progress import Progress
from trainer.lessons import preset_rules

BALANCED = presets.resolve("balanced", {})


def lessons(liked=0, disliked=0, *, taught=0, noted=0, credited=True, own=True):
    """`noted` are disliked and say why; `taught` are replies to imitate."""
    rated = [lesson(way, credited=credited, own=own) for way in [1.0] * liked + [-1.0] * disliked]
    return rated + [lesson(-1.0, taught=True)] * noted + [lesson(0.0, taught=True, extra=True, own=False)] * taught


def lesson(way, *, taught=False, credited=False, extra=False, own=True):
    sample = SimpleNamespace(reward=way)
    return SimpleNamespace(
        taught=taught, credited=credited, extra=extra, own=own, sample=sample, way=0 if taught else way
    )


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (lessons(6, 22, credited=False), 1.0),
        (lessons(6, 22), 0.4),
        (lessons(14, 14), 0.4),
        (lessons(21, 7), 0.2),
        (lessons(27, 1), 0.4 * 2 / 28),
        (lessons(27, 1, credited=False), 2 / 28),
        (lessons(27, 1, credited=False, own=False), 1.0),  # another model's: what is liked is new to this one
        (lessons(taught=9), 0.5),
        (lessons(noted=9), 0.5),
        (lessons(5, 5, taught=10), 0.45),
        (lessons(25, noted=3, credited=False), (3 * 0.5 + 25 * 6 / 28) / 28),
        (lessons(14, noted=14), 0.45),
    ],
)
def test_the_rate_falls_where_more_is_said_a_token_and_where_little_is_disliked(tmp_path, given, share):
    with Progress(tmp_path) as progress:
        paced = preset_rules.pace(BALANCED, given, progress)
    assert paced.learning_rate == pytest.approx(BALANCED.learning_rate * share)
    few = sum(one.sample.reward < 0 for one in given) < sum(one.sample.reward > 0 for one in given) and given[0].own
    assert ("rated ones are disliked" in (tmp_path / "progress.jsonl").read_text()) is few
