"""Does this tree decide as the one that made these runs? Recorded run folders, run once more.

    python -m scripts.research.versus.recorded_runs FOLDER [FOLDER ...] [--before TREE]

A folder has run.json, samples.jsonl and result.json; the versions that it names must still be there. With --before,
another checkout of this repository makes its runs again too, one after the other and in turns. Without it, the recorded
result is what this tree's is compared with. A line a run goes to benchmarks/recorded_runs.jsonl at once. At the end it
says how many decisions are equal, and the CPU seconds of both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from scripts.bench.persona import ROOT
from scripts.harness.circumstances import machine_name, now
from scripts.research.poisoned import lines_of
from scripts.research.run_cost import commit, cost

FILE = ROOT / "benchmarks/recorded_runs.jsonl"
MEMBERS = ("status", "reason", "gate", "metrics")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    options = parser.parse_args()
    for folder in options.folders:
        line: dict[str, Any] = {"run": "/".join(folder.parts[-4:]), "machine": machine_name(), "date": now()}
        if options.before:
            line["before"] = result_of(folder, options.before)
        else:
            recorded = json.loads((folder / "result.json").read_bytes())
            line["before"] = {name: recorded[name] for name in MEMBERS}
        line["now"] = result_of(folder, ROOT)
        line |= compare(line["before"], line["now"])
        with FILE.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print({name: line[name] for name in ("run", "equal", "gaps")}, line["now"]["reason"], flush=True)
    summarise(list(lines_of(FILE)))


def result_of(folder: Path, tree: Path) -> dict[str, Any]:
    spec = json.loads((folder / "run.json").read_bytes())
    result = cost(tree, spec | {"threads": 1}, list(lines_of(folder / "samples.jsonl")))
    return {name: result[name] for name in (*MEMBERS, "cpu_s", "cpu_phases_s")} | {"commit": commit(tree)}


def compare(reference: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """Tell whether both decide alike in all checks that both made, and how far apart the values of these are."""
    pairs = {
        name: (check, current["gate"][name]) for name, check in reference["gate"].items() if name in current["gate"]
    }
    equal = reference["status"] == current["status"] and all(old["ok"] == new["ok"] for old, new in pairs.values())
    gaps = {name: abs((old["value"] or 0) - (new["value"] or 0)) for name, (old, new) in pairs.items()}
    return {"equal": equal, "gaps": {name: round(gap, 4) for name, gap in gaps.items() if gap > 1e-3}}


def summarise(lines: list[dict[str, Any]]) -> None:
    equal = sum(line["equal"] for line in lines)
    print(f"{equal} of {len(lines)} decisions are equal")
    timed = [line for line in lines if "cpu_s" in line["before"]]
    if timed:
        seconds, reference = (sum(line[side]["cpu_s"] for line in timed) for side in ("now", "before"))
        print(f"{seconds:.0f} CPU seconds of {reference:.0f} in {len(timed)} of them, {seconds / reference:.2f}")


if __name__ == "__main__":
    main()
