"""Measure what a change costs or brings between agent and model: an earlier tree beside this one, in one run.

    python -m scripts.bench.trees COMMIT [SHAPE …] [--exact] [--rounds N] [--json FILE]

The shapes are relay's (`turn-200`, `plain-1M-1`, …). The commit is checked out beside, and this environment serves both
trees. Each is asked in turn, with the bare relay and nothing at all, in windows of under a second. CPU is that of all
threads a request: its lowest window, because a neighbour can only make one dearer, and the median.
With `--exact` token ids and log-probs are asked for and taken out again, as with vLLM.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.relay.measure import Client, Shape, shapes
from scripts.bench.relay.targets import Target, bare, checked_out, rlproxy, stop, upstream
from scripts.harness.circumstances import machine, now

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ("turn-2", "turn-200", "plain-1M-1", "plain-1k-16", "stream-1k-16")
WINDOW_S = 0.8


def cpu_us(target: Target) -> float:
    """CPU of all threads of the target since they began; finer than the ticks of 10 ms that other counters have."""
    tasks = Path(f"/proc/{target.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


def window(client: Client, shape: Shape, target: Target) -> dict[str, float]:
    cpu_before = cpu_us(target)
    load = client.load(shape, target, WINDOW_S)
    figures = {"p50_ms": load["latency_ms"]["p50"], "answers_a_second": load["answers"] / load["seconds"]}
    if load.get("first_ms"):
        figures["first_p50_ms"] = load["first_ms"]["p50"]
    if load.get("gap_ms"):
        figures["gap_p99_ms"] = load["gap_ms"]["p99"]
    if target.name == "direct":  # nobody is between: there is no process to look at
        return figures
    return figures | {"cpu_us": (cpu_us(target) - cpu_before) / load["answers"]}


def summed(windows: list[dict[str, float]]) -> dict[str, float]:
    # Where each answer comes in one read there is no gap to tell of.
    each = {name: [row[name] for row in windows] for name in windows[0] if all(name in row for row in windows)}
    medians = {name: round(statistics.median(values), 3) for name, values in each.items()}
    return medians | ({"cpu_us_lowest": round(min(each["cpu_us"]), 3)} if "cpu_us" in each else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--rounds", type=int, default=7, help="the first is not counted")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shapes_by_name = {shape.name: shape for shape in shapes()}
    report: dict[str, Any] = {
        "date": now(), "machine": machine(), "commit": arguments.commit,
        "rounds": arguments.rounds, "exact": arguments.exact, "shapes": {},
    }  # fmt: skip
    kind = "vllm" if arguments.exact else "openai"
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as place, checked_out(arguments.commit) as tree:
        folder, client = Path(place), Client()
        up = upstream(folder)
        try:
            targets = [
                rlproxy(folder, up, "before", kind, tree),
                rlproxy(folder, up, "after", kind),
                bare(folder, up),
            ]
            targets.append(Target("direct", up, targets[0].process, ""))
            for name in arguments.shapes:
                windows: dict[str, list[dict[str, float]]] = {target.name: [] for target in targets}
                for number in range(arguments.rounds):
                    for target in targets:
                        row = window(client, shapes_by_name[name], target)
                        if number:
                            windows[target.name].append(row)
                report["shapes"][name] = {target: summed(of) for target, of in windows.items()}
                for target_name, summary in report["shapes"][name].items():
                    print(f"{name:14s} {target_name:8s} {summary}", flush=True)
        finally:
            client.close()
            for child in psutil.Process().children():
                stop(child)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
