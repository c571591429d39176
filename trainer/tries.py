"""At most two tries at a version: the second from the start and at half the rate. And the seconds of each phase.

Owns what a resumed run has to know of its tries. Not here: the steps (steps), the verdict (gate), their order (loop).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from config.presets import Preset
from trainer.gate import Check
from trainer.run_folder import write_atomic


class Tries:
    """At most two: the second from the start and at half the rate. On disk, so that a resumed run knows which it is."""

    def __init__(self, folder: Path, preset: Preset) -> None:
        self.folder = folder
        self._path = folder / "retry.json"
        self._full = preset
        self.why: str | None = json.loads(self._path.read_bytes())["why"] if self._path.exists() else None

    @property
    def preset(self) -> Preset:
        if self.why is None:
            return self._full
        full = self._full
        half = {"learning_rate": full.learning_rate / 2, "drift_credited": full.drift_credited / 2}
        return full.model_copy(update=half)

    def again(self, why: str, checks: dict[str, Check]) -> bool:
        """Whether a second try is worth it: not for what moved too little already."""
        if self.why is not None or ("no_op" in checks and not checks["no_op"].ok):
            return False
        self.why = why
        write_atomic(self._path, json.dumps({"why": why}, ensure_ascii=False).encode())
        return True


@dataclass
class Clock:
    """Seconds a phase, for the manifest; those of a second try on top."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[f"seconds_{name}"] = round(self.laps.get(f"seconds_{name}", 0.0) + now - self.since, 2)
        self.since = now
