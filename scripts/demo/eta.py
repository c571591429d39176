"""Measure how right the time to go of a run is: what `status` said at moments of each run, against when it ended.

`python -m scripts.demo.eta [--runs 5] [--ratings 12] [--busy]` writes benchmarks/eta.json. A real rlproxy with the
built-in SmolLM2-135M answers, is rated, and trains as often as asked, each time because a person said so. `--busy`
has two loops run beside it, a process each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from proxy.training.run_state import STAGES
from scripts.bench.yielding import QUESTIONS
from scripts.harness.circumstances import circumstances
from scripts.harness.serving import Serving
from trainer.formats.weights import resolve

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "eta.json"
POLL_S = 1.0
COMPUTING = [STAGES[stage] for stage in ("old", "train", "gate")]
MOMENTS = (0.1, 0.25, 0.5, 0.75)  # of the run's time
NO_RULE = {"RLPROXY_TRAIN__START_AT": "1000", "RLPROXY_TRAIN__NICE": "10", "RLPROXY_GATE__BASE_NLL_RISE": "100"}


async def one_run(serving: Serving, number: int, ratings: int) -> dict[str, Any]:
    for index in range(ratings):
        question = QUESTIONS[index % len(QUESTIONS)]
        answer, _ = await serving.chat(f"{number}.{index}. {question}", max_tokens=32)
        await serving.rate(answer["id"], "good" if index % 2 else "bad")
    await serving.post("/rl/train")
    start, samples = time.monotonic(), list[dict[str, Any]]()
    while not samples or (await serving.status())["training"]["run"] is not None:
        status = (await serving.status())["training"]
        if (stage := status["stage"]) is not None:
            samples.append({"t": round(time.monotonic() - start, 1), "stage": stage["stage"],
                            "remaining_s": stage["remaining_s"], "core_share": stage["core_share"],
                            "says_busy": "the machine is busy" in stage["line"]})  # fmt: skip
        await asyncio.sleep(POLL_S)
    run_s = time.monotonic() - start
    last = (await serving.status())["last_run"]
    computing = [s for s in samples if s["stage"] in COMPUTING]
    return {
        "run": last["id"], "status": last["status"], "seconds": round(run_s, 1), "retried": last["retried"],
        "stages": {key: value for key, value in (last["metrics"] or {}).items() if key.startswith("seconds_")},
        "load": round(os.getloadavg()[1], 1),  # of five minutes
        "core_share": _median([s["core_share"] for s in computing if s["core_share"] is not None]),
        "least_core_share": min((s["core_share"] for s in computing if s["core_share"] is not None), default=None),
        "says_busy": _share([s["says_busy"] for s in computing]),  # of the looks while it computed
        "errors": {str(moment): _error(samples, run_s, moment) for moment in MOMENTS},
    }  # fmt: skip


def _error(samples: list[dict[str, Any]], run_s: float, moment: float) -> float | None:
    """(announced end − end) ÷ the run's time, of what was said at this share of its time; None: nothing was said."""
    sample = min(samples, key=lambda s: abs(float(s["t"]) - moment * run_s))
    if sample["remaining_s"] is None:
        return None
    return round((float(sample["t"]) + float(sample["remaining_s"]) - run_s) / run_s, 3)


def _share(values: list[bool]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


@contextlib.contextmanager
def loops(count: int) -> Iterator[None]:
    """Programs that take all of a core that they get, each in a session of its own."""
    processes = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def measure(runs: int, ratings: int, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """`keep` gets what is known after each run."""
    measured = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        serving = Serving(Path(folder) / "home", resolve().path, **NO_RULE)
        await serving.start()
        try:
            for number in range(runs):
                measured.append(await one_run(serving, number, ratings))
                print(json.dumps(measured[-1]), flush=True)
                keep(measured)
        finally:
            await serving.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ratings", type=int, default=12)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    place = circumstances()

    def keep(measured: list[dict[str, Any]]) -> None:
        stored = json.loads(OUT.read_text()) if OUT.exists() else {}
        stored["busy" if options.busy else "alone"] = {**place, "ratings": options.ratings, "runs": measured}
        OUT.write_text(json.dumps(stored, indent=1) + "\n")

    with loops(2 if options.busy else 0):
        asyncio.run(measure(options.runs, options.ratings, keep))


if __name__ == "__main__":
    main()
