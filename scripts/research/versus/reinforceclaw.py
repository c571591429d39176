"""One round of ReinforceClaw 0.1.0's own trainer, on the CPU: started by versus.py in its own environment.

    HOME=FOLDER python -m scripts.research.versus.reinforceclaw JOB.json

Owns the stand-in for its CUDA backend and nothing of its training. Ratings go in through its own database, and
`trainer.train_result` is called as `reinforceclaw train` calls it, until it has nothing more to train on. HOME must be
a folder of the comparison's own: ReinforceClaw keeps its database and adapters below it, from round to round.
Prints one JSON line: the newest adapter's folder and what each training said. Imports nothing of rlproxy.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from reinforceclaw import db, presets, profile, trainer  # type: ignore[import-not-found]

GB = 1024**3


@dataclass(frozen=True)
class Hardware:
    """More than enough of everything, so that its plan cuts neither batch nor steps."""

    device_name: str = "cpu"
    total_memory_bytes: int = 64 * GB
    available_memory_bytes: int = 48 * GB
    system_total_memory_bytes: int = 64 * GB
    system_available_memory_bytes: int = 48 * GB
    unified_memory: bool = False
    backend: str = "cuda"


class Backend:
    """CUDABackend's surface on the CPU. Its trainer goes by the name, so that stays."""

    name = "cuda"
    unified_memory = False

    def __init__(self) -> None:
        self.torch, self.device = torch, torch.device("cpu")

    def hardware(self) -> Hardware:
        return Hardware()

    def preferred_dtype(self) -> torch.dtype:
        return torch.float32

    def memory_snapshot(self) -> dict[str, float]:
        return {}

    def _nothing(self, *args: Any, **kwargs: Any) -> int:
        return 0

    apply_limits = clear_all = clear_cache = synchronize = reset_peak_memory = _nothing
    active_memory_bytes = cache_memory_bytes = peak_memory_bytes = current_memory_bytes = _nothing


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_bytes())
    assert Path.home() == Path(job["home"]), "HOME is not the comparison's own folder"
    torch.set_num_threads(job["threads"])
    trainer._select_backend = lambda config: Backend()
    shipped = presets.pick(profile.detect(job["model"]), "balanced")
    config = {"model": job["model"], "low_priority": False, "grad_clip": 1.0} | shipped | job["settings"]
    conn = db.connect()
    for rated in job["ratings"]:
        db.add_feedback(conn, job["model"], rated["prompt"], rated["response"], rated["rating"], source="cli")
    trainings = []
    while True:
        start, cpu = time.monotonic(), time.process_time()
        result = trainer.train_result(config, conn)
        if result.get("status") != "trained":
            trainings.append(result)
            break
        gate = trainer.publish_gate(config, result["path"])
        if gate["ok"]:
            db.activate_training_round(
                conn,
                result["version"],
                result["ema_mean"],
                result["ema_count"],
                result["feedback_ids"],
                model=job["model"],
            )
        fields = {name: result[name] for name in ("batch_size", "steps", "avg_loss", "version", "path")}
        spent = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
        trainings.append({"status": "trained", "gate": gate} | fields | spent)
    latest = db.latest_adapter(conn, model=job["model"])
    about = {
        "adapter": str(Path(latest["path"]).parent) if latest else None,
        "config": {name: value for name, value in config.items() if name != "model_profile"},
        "trainings": trainings,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "home": os.environ["HOME"],
    }
    print(json.dumps(about))


if __name__ == "__main__":
    main()
