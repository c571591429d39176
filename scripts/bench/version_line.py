"""A line of versions as the proxy would keep it: runs one after the other, each from the last that passed the gate.

Owns what a run is given beside the newest ratings. A run that is rejected gives its ratings back, and the next one has
them too. Not here: who rates (persona), what is measured (learn, exam, retention).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from config import presets
from scripts.bench.persona import train

Line = dict[str, Any]  # of a samples.jsonl


@dataclass
class LineState:
    """All that the next run is given beside its own ratings. Plain values, so that a line can go on after a kill."""

    runs: int = 0
    baseline: float = 0.0
    versions: list[tuple[int, str | None]] = field(default_factory=lambda: [(0, None)])  # that were live, in order
    waiting: list[Line] = field(default_factory=list)  # ratings that a run gave back
    held_lines: list[Line] = field(default_factory=list)


def overrides_of(items: Sequence[str]) -> dict[str, Any]:
    """Values of a preset by name, of `--set NAME=VALUE`, each value as JSON. Ends the program where one is not so."""
    overrides = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            overrides[name] = json.loads(value)
        except ValueError:
            sys.exit(f"--set {item}: write NAME=VALUE with the value as JSON, as in --set 'match=\"token\"'")
    return overrides


class VersionLine:
    def __init__(
        self,
        weights: Path,
        preset: str,
        overrides: dict[str, Any],
        *,
        seed: int,
        threads: int,
        home: Path | None = None,
        state: dict[str, Any] | None = None,
        lessons: bool = False,
    ) -> None:
        """home: where runs and versions are kept, by default a new temporary folder.

        state: of `state`, to go on. lessons: runs measure what lessons still change.
        """
        self.preset = presets.resolve(preset, overrides)
        self._home = home or Path(tempfile.mkdtemp(prefix="versions-"))
        self._settings = {
            "format": 1,
            "model": weights.name,
            "weights": str(weights),
            "threads": threads,
            "preset": preset,
            "overrides": overrides,
            "lessons": lessons,
        }
        self._seed = seed
        self._state = LineState(**state or {})

    @property
    def versions(self) -> list[tuple[int, Path | None]]:
        """Every version that was live, in order; the base first."""
        return [(number, Path(adapter) if adapter else None) for number, adapter in self._state.versions]

    @property
    def version(self) -> int:
        return self.versions[-1][0]

    @property
    def adapter(self) -> Path | None:
        return self.versions[-1][1]

    @property
    def state(self) -> dict[str, Any]:
        return asdict(self._state)

    def learn(self, lines: list[Line]) -> dict[str, Any]:
        """One run from the live version: its result, as `persona.train` returns it. What passes goes live."""
        state = self._state
        state.runs += 1
        number = state.runs
        for i, line in enumerate(lines):  # two rounds on one version, where a run in between was rejected
            line["rating"], line["completion"] = f"rt-{number}-{i}", f"rl-{number}-{i}"
        lines = lines + state.waiting
        folder, out = self._home / f"runs/r{number:05}", self._home / f"adapters/v{number:04}"
        for leftover in (folder, out):  # of a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        spec = self._settings | {
            "run": number,
            "version": number,
            "parent": self.version,
            "out": str(out),
            "adapters": {str(version): adapter for version, adapter in state.versions if adapter},
            "baseline": state.baseline,
            "seed": self._seed * 10 + number,
        }
        result = train(folder, spec, lines + state.held_lines)
        if result["status"] == "passed":
            state.versions.append((number, str(out)))
            state.baseline = result["baseline_after"]
            state.held_lines = [line for line in lines if line["split"] == "held"] + state.held_lines
            state.waiting = []
        else:
            state.waiting = lines
        return result
