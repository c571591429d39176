"""Which earlier samples train once more: as many liked as disliked, the newest versions first, none too old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import presets
from tests.harness import tiny
from tests.trainer.lessons.test_lessons import LINE
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons import replay
from trainer.lessons.chat_template import Template
from trainer.lessons.samples import Sample, parse

ONE = parse(LINE, "rt-1", Template(tiny.tokenizer()), max_seq_len=100)
SPEC = RunSpec(run=1, model="m", weights="w", version=20, parent=10, out=Path("out"))


@pytest.fixture(scope="module")
def progress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Progress]:
    with Progress(tmp_path_factory.mktemp("run")) as progress:
        yield progress


earlier_ones = st.lists(st.tuples(st.integers(0, 10), st.sampled_from([-1.0, -0.3, 0.0, 0.3, 1.0])), max_size=30)


@given(st.integers(0, 12), st.integers(0, 4), earlier_ones, st.floats(0, 0.75))
def test_what_is_replayed(
    progress: Progress, new: int, held: int, earlier: list[tuple[int, float]], ratio: float
) -> None:
    preset = presets.resolve("balanced", {"replay_ratio": ratio})
    samples: list[Sample] = [
        replace(ONE, rating=f"new {i}", version=10, is_held_back=i < held) for i in range(new + held)
    ]
    samples += [
        replace(ONE, rating=f"old {i}", version=version, reward=reward, replayed=True)
        for i, (version, reward) in enumerate(earlier)
    ]
    chosen = replay.choose(samples, SPEC, preset, progress)
    assert chosen[: new + held] == samples[: new + held]
    again = chosen[new + held :]
    liked, disliked = [s for s in again if s.reward > 0], [s for s in again if s.reward < 0]
    assert len(again) == len(liked) + len(disliked) == 2 * len(liked)
    assert len(again) <= preset.replays(new) <= max(0, ratio / (1 - ratio) * new + 1)
    for side, all_of in (
        (liked, [s for s in samples if s.reward > 0]),
        (disliked, [s for s in samples if s.reward < 0]),
    ):
        left = [s for s in all_of if s.replayed and s not in side]
        assert all(s.version >= SPEC.parent - preset.max_version_gap for s in side)
        assert all(s.version <= min((x.version for x in side), default=99) for s in left)
