"""kill -9 and power cuts at random instants under load, and behind single steps; what is on the disk after each.

`python -m scripts.chaos [--kills N] [--cuts N] [--steps N] [--minutes M] [--seed S]` writes benchmarks/chaos.json, or
chaos_short.json with fewer kills or cuts than usual. It ends with status 1 where anything acknowledged was missing,
doubled or damaged, and then the homes are kept. Docs: docs/lab/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.chaos import kills, power, steps
from scripts.harness.circumstances import commit, machine_name, now

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 20  # kills between two words on how it goes
CUTS_A_LIFE = 100
KILLS, CUTS, STEPS = 200, 500, 60


async def killing(count: int, folder: Path, dice: random.Random, until: float) -> dict[str, Any]:
    total: dict[str, Any] = {}
    while total.get("instants", 0) < count and time.monotonic() < until:
        batch = min(AT_ONCE, count - total.get("instants", 0))
        part_folder = folder / f"kills{total.get('instants', 0)}"
        part_folder.mkdir()
        added(total, await kills.killed(batch, part_folder, dice.randrange(2**32), until), part_folder)
        print(f"kills: {total['instants']} of {count}, {len(total['wrong'])} things wrong", flush=True)
    return total


async def cutting(count: int, folder: Path, dice: random.Random, until: float) -> dict[str, Any]:
    total: dict[str, Any] = {}
    while total.get("cuts", 0) < count and time.monotonic() < until:
        batch = min(CUTS_A_LIFE, count - total.get("cuts", 0))
        part_folder = folder / f"cuts{total.get('cuts', 0)}"
        part_folder.mkdir()
        added(total, await power.cuts(batch, part_folder, dice.randrange(2**32), until=until), part_folder)
        total["lives"] = total.get("lives", 0) + 1
        print(f"power cuts: {total['cuts']} of {count}, {len(total['wrong'])} things wrong", flush=True)
    return total


async def stepping(count: int, folder: Path, dice: random.Random, until: float) -> dict[str, Any]:
    """So many kills behind single acts of commits, and of an encrypted migration."""
    report: dict[str, Any] = {}
    for name in ("commits", "migration"):
        part_folder = folder / name
        part_folder.mkdir()
        seed = dice.randrange(2**32)
        if name == "commits":
            tally = await steps.commits(count, part_folder, seed, until)
        else:
            tally = await asyncio.to_thread(steps.migrations, count, part_folder, seed, until)
        added(report.setdefault(name, {}), tally, part_folder)
        print(f"{name}: killed behind {tally['instants']} of {count} acts, {len(tally['wrong'])} wrong", flush=True)
    return report


def added(total: dict[str, Any], tally: dict[str, Any], folder: Path) -> None:
    for name, value in tally.items():
        total[name] = total.get(name, [] if isinstance(value, list) else 0) + value
    if not tally["wrong"]:
        shutil.rmtree(folder)


def is_short(options: argparse.Namespace) -> bool:
    return bool(options.kills < KILLS or options.cuts < CUTS or options.steps < STEPS)


async def main(options: argparse.Namespace) -> int:
    began = time.monotonic()
    until = began + options.minutes * 60
    dice = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="rlproxy-chaos-"))
    report: dict[str, Any] = {"date": now(), "machine": machine_name(), "commit": commit(), "seed": options.seed}
    report |= {"load_before": round(os.getloadavg()[0], 1), "sqlite": sqlite3.sqlite_version}
    report["kills"] = await killing(options.kills, folder, dice, until)
    if (reason := power.compiler()) is None:
        report["power_cuts"] = await cutting(options.cuts, folder, dice, until)
        report |= await stepping(options.steps, folder, dice, until) if options.steps else {}
    else:
        print(f"power cuts and kills behind single acts: none, {reason}")
        report["power_cuts"] = {"none": reason, "wrong": []}
    report["seconds"] = round(time.monotonic() - began, 1)
    parts = [report[name] for name in ("kills", "power_cuts", "commits", "migration") if name in report]
    wrong = [problem for part in parts for problem in part.get("wrong", [])]
    report["ok"] = not wrong and report["kills"].get("instants", 0) == options.kills
    target = options.json or ROOT / "benchmarks" / ("chaos_short.json" if is_short(options) else "chaos.json")
    target.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if wrong:
        print(f"The homes are kept: {folder}")
    else:
        shutil.rmtree(folder)
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--cuts", type=int, default=CUTS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--minutes", type=float, default=30.0, help="no life begins after that")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    signal.alarm(int(arguments.minutes * 60) + 600)  # whatever hangs; the proxies end with us
    sys.exit(asyncio.run(main(arguments)))
