"""Seconds and CPU of the suite by test file, beside the same of an earlier commit.

    python -m scripts.suite_times [--name now] [--keep DIR] [-- pytest's arguments]

Runs pytest with itself as a plugin, or reads the records that `--keep DIR` has of an earlier run.
Writes benchmarks/suite_times.json, one entry a name. CPU is that of a test's process and of the processes that it
waited for. A process that was killed before its children leaves theirs out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.harness.circumstances import ROOT, circumstances

VARIABLE: Final = "RLPROXY_SUITE_TIMES"  # the folder of the records
FILE: Final = ROOT / "benchmarks" / "suite_times.json"
FILES_PRINTED: Final = 30


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    start = os.times()
    outcome = yield
    end = os.times()
    cpu = sum(end[:4]) - sum(start[:4])
    record = {"test": item.nodeid, "seconds": end.elapsed - start.elapsed, "cpu": cpu}
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with (Path(os.environ[VARIABLE]) / f"{worker}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return outcome


def summary(folder: Path) -> dict[str, Any]:
    """Tests, seconds and CPU of each file, the dearest first."""
    files: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for records in sorted(folder.glob("*.jsonl")):
        for record in map(json.loads, records.read_text(encoding="utf-8").splitlines()):
            totals = files[record["test"].partition("::")[0]]
            for index, value in enumerate((1, record["seconds"], record["cpu"])):
                totals[index] += value
    ordered = sorted(files.items(), key=lambda entry: -entry[1][2])
    return {
        "tests": sum(int(totals[0]) for totals in files.values()),
        "seconds": round(sum(totals[1] for totals in files.values()), 1),
        "cpu": round(sum(totals[2] for totals in files.values()), 1),
        "files": {name: [int(count), round(seconds, 1), round(cpu, 1)] for name, (count, seconds, cpu) in ordered},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="now")
    parser.add_argument("--keep", type=Path, help="the folder of the records; where it has some, nothing runs")
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    facts = circumstances()
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    status = 0
    if not any(folder.glob("*.jsonl")):
        command = [sys.executable, "-m", "pytest", "-p", "scripts.suite_times", "-n", "2", "--dist", "loadfile"]
        command += ["--no-loadscope-reorder", *options.arguments]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: str(folder)}).returncode
    result = summary(folder)
    entries = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    FILE.write_text(json.dumps({**entries, options.name: {**facts, **result}}, indent=1) + "\n", encoding="utf-8")
    print(f"{result['tests']} tests, {result['seconds']:.0f} s, {result['cpu']:.0f} s of CPU")
    for name, (count, seconds, cpu) in list(result["files"].items())[:FILES_PRINTED]:
        print(f"{count:6} {seconds:8.1f} {cpu:8.1f} {name}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
