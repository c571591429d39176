"""The CPU seconds of a whole run of 28 short samples, beside those of another tree of this repository.

    python -m scripts.research.run_cost [--before FOLDER] [--rounds 3]

Both trees train on the same rated replies of the small model, one thread, one after the other and in turns. Writes
benchmarks/run_cost.json: each run's CPU seconds and wall seconds by phase, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench.persona import ROOT, Chat, Persona, prompts, rate
from scripts.harness.circumstances import circumstances
from trainer.formats import weights

PERSONA, RATED, HELD, SEED = "concise", 32, 4, 1
TARGET = 0.7  # of the CPU time before


def rated(path: Path) -> list[dict[str, Any]]:
    """Ratings of the base model's replies, without comments; four are held back."""
    texts = random.Random(SEED).sample(prompts()["rate"], RATED)
    return rate(Chat(path, 1), Persona(PERSONA), texts, None, version=0, seed=SEED, held=HELD, comments=False)


def cost(tree: Path, model: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One run by the trainer of `tree`."""
    with tempfile.TemporaryDirectory(prefix="run-cost-") as made:
        folder = Path(made)
        spec = {
            "format": 1, "run": 1, "model": model.name, "weights": str(model), "version": 1, "parent": 0,
            "out": str(folder / "v0001"), "adapters": {}, "baseline": 0.0, "seed": SEED, "threads": 1,
            "preset": "balanced", "overrides": {},
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(spec))
        (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (folder / "calibration.jsonl").write_text("")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-P", "-m", "trainer", str(folder)], stdout=subprocess.DEVNULL, check=False, cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads((folder / "result.json").read_bytes())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    phases = {name: s for name, s in result["metrics"].items() if name.startswith("seconds_")}
    return {"cpu_s": round(spent, 1), "status": result["status"], "reason": result["reason"], "wall": phases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    model = weights.resolve(None).path
    lines = rated(model)
    trees = {"now": ROOT} | ({"before": asked.before} if asked.before else {})
    found: dict[str, Any] = {name: {"commit": commit(tree), "runs": []} for name, tree in trees.items()}
    for _ in range(asked.rounds):
        for name, tree in trees.items():
            found[name]["runs"].append(cost(tree, model, lines))
            print(name, found[name]["runs"][-1], flush=True)
            record: dict[str, Any] = {**circumstances(), "samples": RATED - HELD, **found}
            if asked.before and found["before"]["runs"]:
                now, then = (median(run["cpu_s"] for run in found[name]["runs"]) for name in ("now", "before"))
                record |= {"ratio": round(now / then, 3), "target": TARGET}
            (ROOT / "benchmarks/run_cost.json").write_text(json.dumps(record, indent=1) + "\n")
    print({name: record.get(name) for name in ("ratio", "target")})


def commit(tree: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
