"""Which answer `/rl good` rates in conversations that were rewritten as clients rewrite them.

    python -m scripts.bench.matching [--cases 10000] [--seed 1] [--json FILE]

Each world has 30 conversations, with two people and nobody, with sessions and without. Questions and answers are often
the same, and a tenth of the answers is not captured. Everything goes through a whole proxy on loopback. Each case
is one of three: the answer on screen was rated, no answer was, or a wrong one. Writes benchmarks/matching.json, and
exits with 1 where a wrong answer was rated. tests/test_matching.py has 300 of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import structlog

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.circumstances import circumstances
from scripts.harness.in_process import Proxy
from scripts.harness.rewriting import Counts, World, one_case

ROOT: Final = Path(__file__).resolve().parents[2]
CASES_OF_A_WORLD: Final = 250


async def world_of(seed: int, cases: int, counts: Counts) -> None:
    backend = FakeBackend()
    await backend.start()
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(Path(folder) / "home", backend, FakeLauncher())
        await proxy.start()
        try:
            world = World(proxy, random.Random(seed))
            await world.fill(30)
            for number in range(cases):
                await one_case(world, number, counts)
        finally:
            await proxy.stop()
            await backend.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "matching.json")
    arguments = parser.parse_args()
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    report: dict[str, Any] = circumstances()
    counts, began = Counts(), time.monotonic()
    for seed in range(arguments.seed, arguments.seed + -(-arguments.cases // CASES_OF_A_WORLD)):
        asyncio.run(world_of(seed, min(CASES_OF_A_WORLD, arguments.cases - counts.cases), counts))
    report |= {
        "command": f"python -m scripts.bench.matching --cases {arguments.cases} --seed {arguments.seed}",
        "seconds": round(time.monotonic() - began, 1),
        "cases": counts.cases,
        "became": dict(counts.became),
        "by_rewrite": {name: dict(became) for name, became in sorted(counts.by_rewrite.items())},
        "wrong": counts.wrong,
        "untold": counts.untold,
    }
    arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: report[key] for key in ("cases", "became", "seconds")}, indent=1))
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
