"""How far a run pushed each turn of its episodes: whether an early turn gets the credit of the outcome."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from config import presets
from trainer.io.run_folder import SAMPLES, read_lines, read_spec
from trainer.lessons.samples import Sample
from trainer.lessons.trajectories import advantages, turn_in


def by_turn(folder: Path) -> list[dict[str, Any]]:
    """Count the samples of each turn, the first one first, with two mean advantages in units of reward.

    One is the mean of the samples that are pushed up, the other that of those that are pushed down.
    """
    spec = read_spec(folder)
    preset = presets.resolve(spec.preset, spec.overrides)
    parts = [part for _, line in read_lines(folder / SAMPLES) if line and (part := turn_in(line)) is not None]
    samples = cast("list[Sample]", [SimpleNamespace(episode=part) for part in parts])
    values, _ = advantages(
        samples, discount=preset.discount, baseline=spec.episode_baseline, clip=preset.advantage_clip
    )
    turns = []
    for turn in range(max((part.turns for part in parts), default=0)):
        turn_values = [value for value, part in zip(values, parts, strict=True) if part.turn == turn]
        up, down = [value for value in turn_values if value > 0], [value for value in turn_values if value < 0]
        turns.append({"samples": len(turn_values), "up": _mean(up), "down": _mean(down)})
    return turns


def _mean(values: list[float]) -> float:
    return round(sum(values) / max(len(values), 1), 4)
