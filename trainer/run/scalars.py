"""A run's numbers for TensorBoard, where somebody asked for them.

Owns which event becomes which scalar; it listens to the run's events and changes nothing. It is tensorboardX and not
torch.utils.tensorboard, since it needs neither torch nor TensorBoard itself. So it is there for MLX too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from trainer.io.run_folder import RunError

FLUSH_S = 5
NO_SCALARS = (
    "train.tensorboard is on and tensorboardX is not installed: `pip install 'rlproxy[tensorboard]'`, or turn it off"
)
STEP = {
    "loss": "loss",
    "acceptance": "acceptance",
    "kl_ref": "kl_ref",
    "kl_old": "kl_old",
    "kl_teacher": "kl_teacher",
    "grad_norm": "grad_norm",
    "rate": "learning_rate",
}


class Scalars:
    """One event file. Raises RunError where the package is missing: before a run, not after it."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise RunError(f"{NO_SCALARS}.") from None
        self._writer = SummaryWriter(logdir=str(folder), flush_secs=FLUSH_S)
        self._group, self._step = "train", 0

    def samples(self, run: int, lines: Iterable[Mapping[str, Any] | None]) -> None:
        """Write what people thought of the answers that train, and how long these took. The step is the run's number,
        so the runs of a home make a line. `lines`: of samples.jsonl."""
        fresh = [line for line in lines if line is not None and line.get("split") == "train"]
        rewards = [line["reward"] for line in fresh if line.get("reward") is not None]
        seconds = [line["seconds"] for line in fresh if line.get("seconds") is not None]
        if rewards:
            self._writer.add_scalar("samples/reward", fmean(rewards), run)
            self._writer.add_scalar("samples/liked", fmean(reward > 0 for reward in rewards), run)
        if seconds:
            self._writer.add_scalar("samples/answer_seconds", median(seconds), run)

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "phase" if event["phase"] == "train":
                self._group = "second_try" if event.get("again") else "train"
            case "filter":
                for name, value in event.items():
                    if name != "event":
                        self._writer.add_scalar(f"filter/{name}", value, 0)
            case "step":
                self._step = event["step"]
                for name, tag in STEP.items():
                    if event.get(name) is not None:
                        self._writer.add_scalar(f"{self._group}/{tag}", event[name], self._step)
            case "gate":
                for name, check in event["checks"].items():
                    if check["value"] is not None:
                        group = "gate" if self._group == "train" else "gate_second_try"
                        self._writer.add_scalar(f"{group}/{name}", check["value"], self._step)
            case "end" | "stopped":
                self._writer.close()  # the process may end without asking anybody
