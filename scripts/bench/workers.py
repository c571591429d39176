"""Measure the most that `--workers 2` could bring: two rlproxies that know nothing of each other, beside one.

    python -m scripts.bench.workers [--rounds N] [--json FILE]

Each has its own home and store, so neither waits for the other. They share nothing that one process keeps in its
memory: the live pointer, leases, slots, limits of a key, retries. Workers with one store owner would have to do all
that and pass each row on, so they come out below this. Two clients ask, eight at once each: both the one, then each its
own; the same of the bare relay. Client and upstream need their share of the cores, too: the figure is this machine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.relay.measure import Client, Shape
from scripts.bench.relay.targets import Target, bare, rlproxy, stop, upstream
from scripts.harness.circumstances import circumstances

ROOT = Path(__file__).resolve().parents[2]
SHAPES = (Shape("plain-1k-8", "plain", 1000, 1, 8), Shape("stream-1k-8", "stream", 1000, 1, 8))
WINDOW_S = 2.0


def answers_a_second(clients: list[Client], targets: list[Target], shape: Shape) -> float:
    with ThreadPoolExecutor() as pool:
        loads = list(pool.map(lambda pair: pair[0].load(shape, pair[1], WINDOW_S), zip(clients, targets, strict=True)))
    return sum(float(load["answers"] / load["seconds"]) for load in loads)


def measure(clients: list[Client], targets: dict[str, list[Target]], rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for shape in SHAPES:
        each: dict[str, list[float]] = {f"{name} × {n}": [] for name in targets for n in (1, 2)}
        for number in range(rounds):
            for name, (first, second) in targets.items():
                for n, chosen in ((1, [first, first]), (2, [first, second])):
                    rate = answers_a_second(clients, chosen, shape)
                    if number:  # the first is not counted
                        each[f"{name} × {n}"].append(rate)
        medians = {name: round(statistics.median(values), 1) for name, values in each.items()}
        gains = {name: round(medians[f"{name} × 2"] / medians[f"{name} × 1"], 2) for name in targets}
        report[shape.name] = {"answers_a_second": medians, "two_by_one": gains}
        print(shape.name, report[shape.name], flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="the first is not counted")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = circumstances() | {"cores": psutil.cpu_count()}
    with tempfile.TemporaryDirectory() as place:
        folder, clients = Path(place), [Client(), Client()]
        up = upstream(folder)
        try:
            targets = {
                "bare relay": [bare(folder, up) for _ in range(2)],
                "rlproxy": [rlproxy(folder, up, name) for name in ("one", "two")],
            }
            report = about | {"shapes": measure(clients, targets, arguments.rounds)}
        finally:
            for client in clients:
                client.close()
            for child in psutil.Process().children():
                stop(child)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
