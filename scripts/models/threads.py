"""Measure what threads bring a run: on a quiet machine, and beside programs that keep cores busy.

`python -m scripts.models.threads [--weights FOLDER] [--busy 0,1]` writes benchmarks/threads.json. Replies are scored,
written and compared with the base, with one thread and with one a core. Waiting threads sleep at once (spins 0), or
spin for a moment before (trainer.idle_cores). The last way finds the idle cores itself, as a run does. Each way is a
process of its own; seconds of the clock, the second of two passes. On a busy machine the figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.demo.eta import loops
from scripts.harness.circumstances import circumstances
from trainer.container import processors
from trainer.idle_cores import LOOK_S, SPINS, openmp_environment

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "threads.json"
REPLIES, PROMPT, REPLY, WRITTEN = 8, 32, 80, 16  # tokens


def measure(weights: str | None, threads: int) -> dict[str, float]:
    """Seconds of the clock by what was done; `threads` 0: as many as there are idle cores."""
    import numpy as np

    from config import presets
    from trainer.formats.weights import resolve
    from trainer.lessons.batch import score
    from trainer.policy.packing import Tokens
    from trainer.policy.torch_policy import TorchPolicy
    from trainer.run import base_surprise

    preset, source = presets.resolve("balanced", {}), resolve(weights)
    policy = TorchPolicy(source.path, preset, parent=None, threads=threads, seed=0, compute="float32")
    policy.round_products()
    dice = np.random.default_rng(0)

    def some_tokens(count: int) -> tuple[int, ...]:
        return tuple(dice.integers(100, 40_000, count).tolist())

    replies = [Tokens(some_tokens(PROMPT), some_tokens(REPLY)) for _ in range(REPLIES)]
    prompts = [reply.prompt for reply in replies] * 3
    time.sleep(LOOK_S)

    def timed(act: Callable[[], object]) -> float:
        act()
        start = time.monotonic()
        act()
        return round(time.monotonic() - start, 2)

    return {
        "score": timed(lambda: score(policy, replies)),
        "write": timed(lambda: policy.generate(prompts, max_tokens=WRITTEN, temperature=0.8, seed=1)),
        "compare": timed(lambda: base_surprise.BaseSurprise.measure(policy, replies)),
    }


def in_process(weights: str | None, threads: int, spins: int) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.models.threads", "--threads", str(threads)]
    command += ["--weights", weights] if weights else []
    environment = os.environ | openmp_environment(threads or 1) | {"GOMP_SPINCOUNT": str(spins)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment).stdout
    seconds: dict[str, float] = json.loads(output.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="default: the small model")
    parser.add_argument("--busy", default="0,1", help="programs beside it that keep a core busy")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads is not None:
        print(json.dumps(measure(options.weights, options.threads)))
        return
    record: dict[str, Any] = {**circumstances(), "spins": SPINS, "rows": []}
    for busy in map(int, options.busy.split(",")):
        with loops(busy):
            for threads, spins in ((1, 0), (processors(), 0), (processors(), SPINS), (0, SPINS)):
                row = {"busy": busy, "threads": threads, "spins": spins}
                record["rows"].append(row | in_process(options.weights, threads, spins))
                print(record["rows"][-1], flush=True)
                OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
