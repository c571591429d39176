"""A run folder of an earlier release may ask for preset values that this trainer no longer has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config import presets
from trainer.io.run_folder import read_spec


@pytest.mark.parametrize("name", presets.REMOVED)
def test_a_value_of_an_earlier_release_is_left_out_and_the_run_says_so(tmp_path: Path, name: str) -> None:
    overrides = {"rank": 4, name: 2}
    order = {"format": 1, "run": 1, "model": "m", "weights": "w", "version": 1, "parent": 0, "out": str(tmp_path)}
    choices = [{"name": "held", "value": 2, "why": "an eighth"}]
    (tmp_path / "run.json").write_text(json.dumps(order | {"overrides": overrides, "choices": choices}))
    spec = read_spec(tmp_path)
    assert spec.overrides == {"rank": 4} and presets.resolve(spec.preset, spec.overrides).rank == 4
    held, left_out = spec.choices
    assert held == choices[0] and (left_out["name"], left_out["value"]) == (name, "left out")
    assert presets.REMOVED[name] in left_out["why"]
