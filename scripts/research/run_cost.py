"""The CPU seconds of a whole run of 28 short samples, beside those of another tree of this repository.

    python -m scripts.research.run_cost [--before FOLDER] [--rounds 3]

Both trees train on the same rated replies of the small model, one thread, one after the other and in turns. Writes
benchmarks/run_cost.json: each run's CPU seconds, also by phase, its memory, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from scripts.bench.persona import ROOT, Chat, Persona, prompts, rate
from scripts.harness.circumstances import circumstances
from trainer.formats import weights

PERSONA, RATED, HELD_COUNT, SEED = "concise", 32, 4, 1
TARGET = 0.5  # of the CPU time before
LOOK_S = 0.2
REPORTED = ("cpu_s", "cpu_phases_s", "peak_mb", "status", "reason")
RUN = {
    "format": 1, "run": 1, "version": 1, "parent": 0, "adapters": {}, "baseline": 0.0, "seed": SEED, "threads": 1,
    "preset": "balanced", "overrides": {},
}  # fmt: skip


def rated(path: Path) -> list[dict[str, Any]]:
    """Ratings of the base model's replies, without comments; four are held back."""
    texts = random.Random(SEED).sample(prompts()["rate"], RATED)
    return rate(Chat(path, 1), Persona(PERSONA), texts, None, version=0, seed=SEED, held=HELD_COUNT, comments=False)


def cost(tree: Path, spec: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One run by the trainer of `tree`: its result, and what it took."""
    with tempfile.TemporaryDirectory(prefix="run-cost-") as place:
        folder = Path(place)
        (folder / "run.json").write_text(json.dumps(RUN | spec | {"out": str(folder / "v0001")}))
        (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (folder / "calibration.jsonl").write_text("")
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = psutil.Popen(
            [sys.executable, "-P", "-m", "trainer", str(folder)], stdout=subprocess.DEVNULL, cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        )  # fmt: skip
        phases, peak = watch(process, folder / "progress.jsonl")
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        result: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    spent = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    return result | {"cpu_s": round(spent, 1), "cpu_phases_s": phases, "peak_mb": peak}


def watch(process: psutil.Popen, progress: Path) -> tuple[dict[str, float], int]:
    """CPU seconds by phase, imports being one, and the most memory that the process was seen to have."""
    phases: dict[str, float] = {}
    peak, spent = 0, 0.0
    while process.poll() is None:
        phase = "imports"
        if progress.exists():
            events = [json.loads(line) for line in progress.read_text().splitlines() if line.endswith("}")]
            phase = next((event["phase"] for event in reversed(events) if event["event"] == "phase"), phase)
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            peak = max(peak, process.memory_info().rss)
            total = times.user + times.system
            phases[phase] = phases.get(phase, 0.0) + total - spent
            spent = total
        time.sleep(LOOK_S)
    return {phase: round(seconds, 1) for phase, seconds in phases.items()}, peak >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = weights.resolve(None).path
    lines, spec = rated(model), {"model": model.name, "weights": str(model)}
    trees = {"now": ROOT} | ({"before": arguments.before} if arguments.before else {})
    figures: dict[str, Any] = {name: {"commit": commit(tree), "runs": []} for name, tree in trees.items()}
    for _ in range(arguments.rounds):
        for name, tree in trees.items():
            run = cost(tree, spec, lines)
            figures[name]["runs"].append({member: run[member] for member in REPORTED})
            print(name, figures[name]["runs"][-1], flush=True)
            record: dict[str, Any] = {**circumstances(), "samples": RATED - HELD_COUNT, **figures}
            if arguments.before and figures["before"]["runs"]:
                now, then = (median(run["cpu_s"] for run in figures[name]["runs"]) for name in ("now", "before"))
                record |= {"ratio": round(now / then, 3), "target": TARGET}
            (ROOT / "benchmarks/run_cost.json").write_text(json.dumps(record, indent=1) + "\n")
    print({name: record.get(name) for name in ("ratio", "target")})


def commit(tree: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
