"""At most two tries at a version: the second from the start, and more careful. And the seconds of each phase.

Owns what a resumed run has to know of its tries. Not here: the steps (steps), the verdict (gate), their order (loop).
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from config.presets import Preset
from trainer.io.run_folder import write_atomic
from trainer.run import checkpoint
from trainer.run.gate import Check

MOST_SPENT = 0.5  # beyond it a second try with the whole weight would be much the same as the first


class Attempts:
    """At most two, the second from the start. On disk, so that a resumed run knows which it is.

    A run by token takes its pushes back where they were not earned. It spends as much of the preset's weight on that as
    its parent had spent of the sense it might lose (`spent`, 0 to 1). On a version that has lost none it would only
    learn less (docs/lab/training-log.md, the thirteenth look). One that lost too much, half of the way back too, does
    so with the whole weight in its second try. That holds where the whole is at least twice what it was. Any other goes
    at half the rate.
    """

    def __init__(self, folder: Path, preset: Preset, spent: float = 0.0) -> None:
        self.folder = folder
        self._path = folder / "retry.json"
        self._full = preset
        self._spent = spent
        stored = json.loads(self._path.read_bytes()) if self._path.exists() else {}
        self.reason: str | None = stored.get("why")
        self._elsewhere: bool = stored.get("elsewhere", False)

    @property
    def preset(self) -> Preset:
        full = self._full
        if self._elsewhere:
            return full
        changes = {"w_elsewhere": full.w_elsewhere * self._spent}
        if self.reason is not None:
            changes |= {"learning_rate": full.learning_rate / 2, "drift_credited": full.drift_credited / 2}
            changes["drift_weak"] = full.drift_weak / 2
        return full.model_copy(update=changes)

    @property
    def weighed(self) -> str:
        """Why `w_elsewhere` is what it is."""
        if self._elsewhere:
            return "all of it in a second try"
        return f"{self._spent:.0%} of the sense that the gate lets a version lose (base_nll) was spent before"

    @property
    def how(self) -> str:
        """In which way the second one differs."""
        return "with its pushes taken back elsewhere" if self._elsewhere else "at half the rate"

    def retry(self, reason: str, checks: dict[str, Check], *, elsewhere: bool) -> bool:
        """Tell if a second try is worth it: not for what moved too little already. `elsewhere`: there are places to
        take pushes back at, and the objective has a loss for it."""
        if self.reason is not None or ("no_op" in checks and not checks["no_op"].ok):
            return False
        self.reason = reason
        may_push_down = self._full.w_elsewhere > 0 and self._spent <= MOST_SPENT
        self._elsewhere = elsewhere and may_push_down and has_lost_sense(checks)
        stored = {"why": reason, "elsewhere": self._elsewhere}
        write_atomic(self._path, json.dumps(stored, ensure_ascii=False).encode())
        shutil.rmtree(self.folder / checkpoint.FOLDER, ignore_errors=True)  # the first one's
        return True


def has_lost_sense(checks: dict[str, Check]) -> bool:
    """Tell whether base_nll says no, and nothing else does."""
    return [name for name, check in checks.items() if not check.ok] == ["base_nll"]


@dataclass
class Clock:
    """Seconds a phase, for the manifest; those of a second try on top."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[f"seconds_{name}"] = round(self.laps.get(f"seconds_{name}", 0.0) + now - self.since, 2)
        self.since = now
