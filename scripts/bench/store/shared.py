"""Completions a second of the store on both engines, side by side, and of one relay against two on one database.

    python -m scripts.bench.store.shared --json benchmarks/shared_store.json

No HTTP: only the store, each answer waiting for its commit, on a disk that is waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.bench.store.alone import commits
from scripts.harness.postgres import LACKS, PostgresServer, find_binaries

AT_ONCE = (1, 8, 64)
_RELAY = """import asyncio, json, sys
from pathlib import Path
from scripts.bench.store.alone import commits
found = asyncio.run(commits(64, float(sys.argv[3]), Path(sys.argv[1]), sys.argv[2], sys.argv[4]))
print("FOUND " + json.dumps(found))
"""


def relays(count: int, seconds: float, folder: Path, url: str) -> dict[str, Any]:
    """Processes that write into one database at the same time, 64 conversations each."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _RELAY, str(folder / f"relay{number}"), url, str(seconds), f"r{number}-"],
            stdout=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    measurements = []
    for process in processes:
        out, _ = process.communicate(timeout=seconds + 60)
        measurements += [
            json.loads(line.removeprefix("FOUND ")) for line in out.splitlines() if line.startswith("FOUND ")
        ]
    return {
        "relays": count,
        "completions_per_s": round(sum(each["completions_per_s"] for each in measurements), 1),
        "p50_ms": max(each["p50_ms"] for each in measurements),
        "p99_ms": max(each["p99_ms"] for each in measurements),
    }


async def measure(seconds: float) -> dict[str, Any]:
    binaries = find_binaries()
    assert binaries is not None, LACKS
    server = PostgresServer(binaries, durable=True)
    report: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
    try:
        server.start()
        with tempfile.TemporaryDirectory(dir=server.folder.parent) as name:
            folder = Path(name)
            report["sqlite"] = [await commits(n, seconds, folder / f"sqlite{n}") for n in AT_ONCE]
            report["postgres"] = [
                await commits(n, seconds, folder / f"postgres{n}", server.url(server.create())) for n in AT_ONCE
            ]
            report["relays"] = [relays(n, seconds, folder / f"of{n}", server.url(server.create())) for n in (1, 2)]
    finally:
        server.close()
    report["load_after"] = round(os.getloadavg()[0], 1)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = asyncio.run(measure(options.seconds))
    print(json.dumps(report, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
