"""A line of versions as the proxy would keep it: runs one after the other, each from the last that passed the gate.

Owns what a run is given beside the newest ratings. A run that is rejected gives its ratings back, and the next one has
them too. Not here: who rates (persona), what is measured (learn, exam).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from config import presets
from scripts.bench.persona import replayed, train

Line = dict[str, Any]  # of a samples.jsonl


class VersionLine:
    def __init__(self, weights: Path, preset: str, overrides: dict[str, Any], *, seed: int, threads: int) -> None:
        self.preset = presets.resolve(preset, overrides)
        self.versions: list[tuple[int, Path | None]] = [(0, None)]  # that were live, one after the other
        self._home = Path(tempfile.mkdtemp(prefix="versions-"))
        self._settings = {
            "format": 1,
            "model": weights.name,
            "weights": str(weights),
            "threads": threads,
            "preset": preset,
            "overrides": overrides,
        }
        self._seed = seed
        self._runs = 0
        self._baseline = 0.0
        self._waiting: list[Line] = []  # ratings that a run gave back
        self._held_lines: list[Line] = []
        self._trained_lines: list[Line] = []  # what runs have trained on, newest first
        self._adapters: dict[str, str] = {}

    @property
    def version(self) -> int:
        return self.versions[-1][0]

    @property
    def adapter(self) -> Path | None:
        return self.versions[-1][1]

    def learn(self, lines: list[Line]) -> dict[str, Any]:
        """One run from the live version: its result, as `persona.train` returns it. What passes goes live."""
        self._runs += 1
        number = self._runs
        for i, line in enumerate(lines):  # two rounds on one version, where a run in between was rejected
            line["rating"], line["completion"] = f"rt-{number}-{i}", f"rl-{number}-{i}"
        lines = lines + self._waiting
        out = self._home / f"adapters/v{number:04}"
        spec = self._settings | {
            "run": number,
            "version": number,
            "parent": self.version,
            "out": str(out),
            "adapters": self._adapters,
            "baseline": self._baseline,
            "seed": self._seed * 10 + number,
        }
        new = [line for line in lines if line["split"] == "train"]
        replay_lines = replayed(self._trained_lines, self.version, self.preset, len(new))
        result = train(self._home / f"runs/r{number:05}", spec, lines + self._held_lines + replay_lines)
        if result["status"] == "passed":
            self.versions.append((number, out))
            self._adapters[str(number)] = str(out)
            self._baseline = result["baseline_after"]
            self._held_lines = [line for line in lines if line["split"] == "held"] + self._held_lines
            self._trained_lines = new + self._trained_lines
            self._waiting = []
        else:
            self._waiting = lines
        return result
