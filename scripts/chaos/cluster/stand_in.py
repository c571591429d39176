"""The cluster's trainer: a real process with a real run folder, which counts instead of training.

    python -m scripts.chaos.cluster.stand_in RUN_FOLDER     as the relay's launcher starts it

As the trainer does, it steps, keeps checkpoints and goes on from them. It gives way to another one in its folder, and
ends with its parent or on SIGTERM. Each step is a line of the journal that $CLUSTER_JOURNAL names: which run, which
process, when. `StandInLauncher` is its launcher.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

from scripts.fakes.launcher import FakeLauncher, write_result
from trainer.child_process import spawn
from trainer.io.run_folder import FolderLocked, lock, write_atomic
from trainer.places.local import LocalJob

JOURNAL: Final = "CLUSTER_JOURNAL"
STEPS: Final = 12
STEP_S: Final = 0.25
FOLDER_TAKEN: Final = 75  # as the trainer ends that finds another in its folder


class StandInLauncher(FakeLauncher):
    async def start(  # type: ignore[override]
        self, run_folder: Path, *, threads: int, nice: int, max_memory_gb: float = 0, key: bytes | None = None
    ) -> LocalJob:
        command = ["-m", "scripts.chaos.cluster.stand_in", str(run_folder)]
        return LocalJob(await spawn(command, threads=1, log=run_folder / "trainer.log", nice=nice))


def train(folder: Path, journal: Path) -> int:
    """The status that it ends with."""
    checkpoint = folder / "checkpoint" / "step"
    checkpoint.parent.mkdir(exist_ok=True)
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    _note(journal, folder, first)
    print(json.dumps({"event": "start", "run": 1, "device": "cpu", "why": "it is a stand-in"}), flush=True)
    for step in range(first + 1, STEPS + 1):
        if select.select([sys.stdin], [], [], STEP_S)[0]:
            return 143  # the relay has ended
        write_atomic(checkpoint, str(step).encode())
        _note(journal, folder, step)
        print(json.dumps({"event": "step", "step": step, "steps": STEPS, "loss": 0.5, "eta_s": 1.0}), flush=True)
    if not (folder / "result.json").exists():
        # As the trainer's: a process before this one may have been killed behind it.
        shutil.rmtree(json.loads((folder / "run.json").read_text())["out"], ignore_errors=True)
        write_result(folder, "passed", {})
    return 0


def _note(journal: Path, folder: Path, step: int) -> None:
    run = json.loads((folder / "run.json").read_text())["run"]
    line = {"run": run, "process": os.getpid(), "step": step, "time": time.time()}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main(folder: Path) -> int:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    try:
        with lock(folder):
            return train(folder, Path(os.environ[JOURNAL]))
    except FolderLocked:
        return FOLDER_TAKEN


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
