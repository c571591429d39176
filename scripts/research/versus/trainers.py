"""The three trainers of versus.py behind one call each: rated replies in, an adapter folder and its cost out.

Owns how each is started: a process of its own, measured from outside. Not here: who rates, what is measured of the
model (__main__), what the other trainers do (reinforceclaw, reinforce).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.persona import ROOT

Line = dict[str, Any]


@dataclass
class Round:
    """One training of one trainer. `home` is the trainer's own folder, the same in all rounds."""

    home: Path
    number: int
    lines: Sequence[Line]  # of a samples.jsonl
    model: Path
    parent: Path | None
    seed: int
    threads: int
    settings: dict[str, Any]
    baseline: float = 0.0


@dataclass
class Trained:
    adapter: Path | None  # None: still the base
    cost: dict[str, float]  # of the whole process, from its start
    about: dict[str, Any]
    baseline: float = 0.0


def ours(job: Round) -> Trained:
    """`python -m trainer` on a run folder, with gate and all. A rejected candidate changes nothing."""
    folder = job.home / f"r{job.number:05}"
    folder.mkdir(parents=True)
    version = job.number - 1
    spec = {
        "format": 1,
        "run": job.number,
        "model": "smollm2",
        "weights": str(job.model),
        "version": job.number,
        "parent": version if job.parent else 0,
        "out": str(job.home / f"v{job.number:04}"),
        "adapters": {str(version): str(job.parent)} if job.parent else {},
        "baseline": job.baseline,
        "seed": job.seed,
        "threads": job.threads,
        **job.settings,
    }
    lines = [line | {"version": version if job.parent else 0} for line in job.lines]
    (folder / "run.json").write_text(json.dumps(spec))
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "calibration.jsonl").write_text("")
    cost, _ = _measured([sys.executable, "-P", "-m", "trainer", str(folder)], {"PYTHONPATH": str(ROOT)}, job.threads)
    result = json.loads((folder / "result.json").read_bytes())
    metrics = result["metrics"]
    laps = {name: seconds for name, seconds in metrics.items() if name.startswith("seconds_")}
    if laps:
        share = 1 - laps.get("seconds_gate", 0.0) / max(cost["seconds"], 1e-9)
        cost["cpu_seconds_without_gate"] = cost["cpu_seconds"] * share
    passed = result["status"] == "passed"
    about = {name: result[name] for name in ("status", "reason", "metrics", "gate")}
    return Trained(Path(spec["out"]) if passed else job.parent, cost, about, result["baseline_after"])


def reinforceclaw(job: Round) -> Trained:
    """Its own `train_result`, until it wants no more."""
    python = _environment() / "bin/python"
    home = job.home / "home"
    home.mkdir(parents=True, exist_ok=True)
    order = _job(job) | {"home": str(home)}
    return _started(
        [str(python), str(ROOT / "scripts/research/versus/reinforceclaw.py")], job, order, {"HOME": str(home)}
    )


def reinforce(job: Round) -> Trained:
    order = _job(job) | {"out": str(job.home / f"v{job.number:04}"), "parent": str(job.parent) if job.parent else None}
    return _started([sys.executable, str(ROOT / "scripts/research/versus/reinforce.py")], job, order, {})


TRAINERS: dict[str, Callable[[Round], Trained]] = {
    "ours": ours,
    "reinforceclaw": reinforceclaw,
    "reinforce": reinforce,
}


def _job(job: Round) -> dict[str, Any]:
    """For a trainer that is not ours: the same replies, as text and as ids."""
    return {
        "model": str(job.model),
        "seed": job.seed,
        "threads": job.threads,
        "settings": job.settings,
        "ratings": [
            {
                "prompt": line["messages"][-1]["content"],
                "response": line["text"],
                "rating": 1 if line["reward"] > 0 else -1,
                "prompt_ids": line["prompt_token_ids"],
                "reply_ids": line["token_ids"],
                "temperature": line["sampling"]["temperature"],
            }
            for line in job.lines
        ],
    }


def _started(command: list[str], job: Round, order: dict[str, Any], env: dict[str, str]) -> Trained:
    job.home.mkdir(parents=True, exist_ok=True)
    path = job.home / f"job{job.number}.json"
    path.write_text(json.dumps(order))
    cost, output = _measured([*command, str(path)], env, job.threads)
    about = json.loads(output.splitlines()[-1])
    adapter = about.pop("adapter")
    return Trained(Path(adapter) if adapter else None, cost, about)


def _measured(command: list[str], env: dict[str, str], threads: int) -> tuple[dict[str, float], str]:
    """Seconds, CPU seconds and peak resident memory of a process from start to end, and what it printed."""
    bounded = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    start = time.monotonic()
    process = subprocess.Popen(command, env=os.environ | bounded | env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output[-2000:]}")
    cost = {
        "seconds": time.monotonic() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024),
    }
    return cost, output


def _environment() -> Path:
    process = subprocess.run([str(ROOT / "scripts/setup_reinforceclaw")], capture_output=True, text=True, check=True)
    return Path(process.stdout.strip())
