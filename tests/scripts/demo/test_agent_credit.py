"""What the demo tells of the credit of turns."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.demo.agent_credit import by_turn


def test_an_early_turn_gets_the_outcome_as_far_as_the_discount_lets_it(tmp_path: Path) -> None:
    run = {"format": 1, "run": 1, "model": "m", "weights": "/w", "version": 1, "parent": 0, "out": "/o"}
    (tmp_path / "run.json").write_text(json.dumps(run | {"overrides": {"discount": 0.5}}))
    lines = [
        {"episode": {"id": id, "group": "g", "reward": reward, "turn": turn, "turns": 2, "turn_reward": None}}
        for id, reward in (("a", 1.0), ("b", 0.0), ("c", 0.0), ("d", 0.0))
        for turn in (0, 1)
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert by_turn(tmp_path) == [
        {"samples": 4, "up": 0.375, "down": -0.125},
        {"samples": 4, "up": 0.75, "down": -0.25},
    ]
