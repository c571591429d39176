"""Measure the cost of a gateway between an agent and its model: rlproxy beside the other gateways, in one run.

    python -m scripts.bench.relay [--quick] [--only WORD …] [--before COMMIT] [--traced URL] [--rounds N] [--resume]
        [--json FILE]

The targets are direct, a bare relay of 30 lines in aiohttp, rlproxy, rlproxy-exact, TensorZero, Portkey and LiteLLM.
rlproxy captures everything and commits each answer before its last byte. rlproxy-exact also asks for token ids and
log-probs and takes them out again. Upstream, client and targets are processes of their own on one machine. In each
round every shape is asked of every target, one after the other. So other work of the machine meets all of them.
Medians are over rounds, and ratios are of one round. `--only` takes targets and shapes (`rlproxy 'plain-1k-*'`);
direct is always there.

`--before` adds an earlier rlproxy, and `--traced` one that sends traces to the collector at this address. All of it
takes 12 minutes and writes benchmarks/relay.json. The figures so far are kept after each round, and `--resume` goes on.
`--quick` takes under 50 s, without the other gateways, and writes nothing unless told where. `--check` is for CI: the
CPU of rlproxy and of the bare relay in one run. Their ratios must stay below BOUNDS.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.relay.targets import STARTS, Failed, Target, checked_out, rlproxy, running, stop, upstream
from scripts.harness.circumstances import circumstances

ROOT = Path(__file__).resolve().parents[3]
RESULT = ROOT / "benchmarks/relay.json"
HALF = ROOT / "benchmarks/relay.half.json"  # what there is of an unfinished run
QUICK = ("direct", "bare", "rlproxy")
# CPU a request, rlproxy ÷ bare relay, in --check: about twice what it is, since machines differ.
BOUNDS = {"plain-1k-16": 14.0, "stream-1k-16": 10.0, "plain-1M-1": 12.0}
ENDED = "its process has ended"  # one that dies is left out of the rest
IDLE_S = 60.0  # for all idle streams to begin


@dataclass(frozen=True)
class Shape:
    """One kind of request, and how many are under way at once."""

    name: str
    kind: str  # plain or stream
    size: int  # bytes of the prompt
    turns: int  # messages
    at_once: int
    chunks: int = 32  # of a stream
    gap_ms: int = 0  # between them
    fresh: bool = False  # no message was there before; else only the last one is new
    seconds: float = 1.5
    quick: bool = False

    def order(self, first: int, seconds: float) -> dict[str, Any]:
        return {
            "op": "load", "kind": self.kind, "size": self.size, "turns": self.turns, "fresh": self.fresh,
            "chunks": self.chunks, "gap_ms": self.gap_ms, "at_once": self.at_once, "seconds": seconds,
            "at_least": self.at_once, "first": first,
        }  # fmt: skip


def shapes() -> list[Shape]:
    all_shapes = []
    for kind in ("plain", "stream"):
        all_shapes += [Shape(f"{kind}-1k-{n}", kind, 1000, 1, n, quick=n in (1, 16)) for n in (1, 16, 64, 256)]
        all_shapes += [Shape(f"{kind}-100k-{n}", kind, 100_000, 21, n) for n in (1, 16)]
        all_shapes += [
            Shape(f"{kind}-1M-{n}", kind, 1_000_000, 61, n, quick=(kind, n) == ("plain", 1)) for n in (1, 16)
        ]
    # A chunk every 10 ms, as a model says them: time to the first, and the gaps.
    all_shapes += [
        Shape(f"paced-{n}", "stream", 1000, 1, n, chunks=40, gap_ms=10, seconds=2.0, quick=n == 16) for n in (1, 16)
    ]
    all_shapes.append(Shape("new-100k-1", "plain", 100_000, 21, 1, fresh=True))
    # Two turns of one conversation, with as much new text: what does its length cost?
    all_shapes += [Shape(f"turn-{n}", "plain", 500 * (2 * n - 1), 2 * n - 1, 1) for n in (2, 200)]
    return all_shapes


IDLE = Shape("idle-1000", "stream", 1000, 1, 1000, chunks=2, gap_ms=120_000, seconds=IDLE_S)


class Client:
    """The process that asks."""

    def __init__(self) -> None:
        command = [sys.executable, str(ROOT / "scripts/bench/relay/load.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._first_number = 0

    def load(self, shape: Shape, target: Target, seconds: float) -> dict[str, Any]:
        self._first_number += 10**7  # no two requests are alike
        return self._order(shape.order(self._first_number, seconds) | target.order)

    def idle(self, shape: Shape, target: Target) -> dict[str, Any]:
        return self._order(shape.order(0, shape.seconds) | target.order | {"op": "idle"})

    def drop(self) -> None:
        self._order({"op": "drop"})

    def close(self) -> None:
        with self._process:  # closes its pipes, and waits for it
            pass

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))


def cell(client: Client, shape: Shape, target: Target, seconds: float) -> dict[str, Any]:
    """One shape of one target: warmed up, then measured."""
    warm = client.load(shape, target, 0.0)
    if warm["answers"] == 0:
        return {"error": (warm["errors"] or ["no answer in 10 s"])[0], "answers": 0}
    cpu_before = target.cpu_s()
    figures = client.load(shape, target, seconds)
    cpu = target.cpu_s() - cpu_before
    figures["per_s"] = round(figures["answers"] / figures["seconds"], 2)
    is_direct = target.name == "direct"  # nobody in between
    figures["cpu_ms"] = round(cpu / figures["answers"] * 1000, 4) if figures["answers"] and not is_direct else None
    figures["warm_answers"] = warm["answers"]
    return figures


def memory(client: Client, target: Target, streams: int) -> dict[str, Any]:
    if not target.process.is_running():
        return {"error": ENDED}
    rss_before = target.rss_mb()
    shape = Shape(**(vars(IDLE) | {"at_once": streams}))
    figures = client.idle(shape, target)
    with_streams = target.rss_mb()
    client.drop()
    time.sleep(0.5)
    return {"rss_mb_before": round(rss_before, 1), "rss_mb": round(with_streams, 1), **figures}


def measure(
    targets: list[str], chosen: list[Shape], rounds: int, pace: float, resumed: dict[str, Any] | None, streams: int
) -> dict[str, Any]:
    """`resumed`: what an earlier run has; `pace`: how much shorter than usual each shape is."""
    client = Client()
    try:
        # Not in memory: a commit is to cost what it costs.
        with tempfile.TemporaryDirectory(dir=Path.home() / ".cache/rlproxy") as name, ExitStack() as stack:
            folder = Path(name)
            url = upstream(folder)
            started = {"direct": Target("direct", url, psutil.Process(), "raw asyncio")}
            report = {"targets": {}, "rounds": [], "memory": {}, **(resumed or {})}
            for target_name in targets:
                start_one(stack, client, target_name, folder, url, started, report)
            already = len(report["rounds"])
            for n in range(already, rounds):
                report["rounds"].append(one_round(client, chosen, list(started.values()), n, pace))
                if resumed is not None:
                    HALF.write_text(json.dumps(report))
            for target in started.values():
                if target.name != "direct":
                    if target.process.is_running():
                        report["targets"][target.name]["rss_mb_after"] = round(target.rss_mb(), 1)
                    if streams:
                        report["memory"][target.name] = memory(client, target, streams)
                        print(f"{target.name:14} idle streams {report['memory'][target.name]}", flush=True)
            stack.close()
            check_captured(started, report, already)
            return report
    finally:
        client.close()
        for child in psutil.Process().children():
            stop(child)


def start_one(
    stack: ExitStack,
    client: Client,
    name: str,
    folder: Path,
    url: str,
    started: dict[str, Target],
    report: dict[str, Any],
) -> None:
    """One that does not run gets a row that says why."""
    if name == "direct":
        report["targets"][name] = {"version": started[name].version}
        return
    try:
        target = stack.enter_context(running(name, folder, url))
        time.sleep(0.5)
        rss_mb = target.rss_mb()
        first = client.load(Shape("first", "plain", 1000, 1, 1), target, 0.0)
        if not first["answers"]:
            raise Failed(f"its first answer: {(first['errors'] or ['none in 10 s'])[0]}")
        started[name] = target
        report["targets"][name] = {"version": target.version, "rss_mb_at_rest": round(rss_mb, 1)}
    except Failed as error:
        report["targets"][name] = {"error": str(error)[:500]}
    print(f"{name:14} {report['targets'][name]}", flush=True)


def one_round(client: Client, chosen: list[Shape], targets: list[Target], n: int, pace: float) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for index, shape in enumerate(chosen):
        shift = (n + index) % len(targets)  # nobody always comes first
        cells[shape.name] = {}
        for target in targets[shift:] + targets[:shift]:
            try:
                figures = cell(client, shape, target, shape.seconds * pace)
            except psutil.NoSuchProcess:
                figures = {"error": ENDED, "answers": 0}
            cells[shape.name][target.name] = figures
            took = figures.get("latency_ms") or {"p50": float("nan"), "p99": float("nan")}
            print(
                f"round {n + 1}  {shape.name:13} {target.name:14} {figures.get('per_s', 0):8.1f}/s  "
                f"p50 {took['p50']:9.2f}  p99 {took['p99']:9.2f}  cpu {figures.get('cpu_ms') or 0:8.3f} ms  "
                f"{figures.get('error') or (figures['errors'][:1] if figures['failed'] else '')}",
                flush=True,
            )
    return cells


def check_captured(started: dict[str, Target], report: dict[str, Any], already: int) -> None:
    """Whatever a client has seen whole is in the database; that of earlier rounds was in another one."""
    for target in started.values():
        if target.home is None:
            continue
        with closing(sqlite3.connect(target.home / "rlproxy.db")) as db:
            (stored,) = db.execute("SELECT count(*) FROM completions WHERE status = 'done'").fetchone()
        rows = [by_target for cells_by_shape in report["rounds"][already:] for by_target in cells_by_shape.values()]
        cells = [by_target[target.name] for by_target in rows if target.name in by_target]
        answers = sum(c["answers"] + c.get("warm_answers", 0) for c in cells) + 1
        report["targets"][target.name] |= {"answers": answers, "stored": stored}
        print(f"{target.name:14} {answers} answers, {stored} stored", flush=True)
        if stored < answers:
            raise SystemExit(f"{target.name} lost {answers - stored} answers that its clients had whole.")


# --- what it means -----------------------------------------------------------------------------------------------


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """For each shape and target: medians over rounds, and what it adds to direct in the same round."""
    summaries: dict[str, Any] = {}
    for shape in report["rounds"][0]:
        summaries[shape] = {}
        for target in report["targets"]:
            rows = [(r[shape].get(target), r[shape]["direct"]) for r in report["rounds"]]
            pairs = [(mine, direct) for mine, direct in rows if mine and mine["answers"] and direct["answers"]]
            if pairs:
                summaries[shape][target] = _medians(pairs)
    for by_target in summaries.values():
        for row in by_target.values():
            row["of_bare"] = _ratios(row, by_target.get("bare"))
    return summaries


def _medians(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    def middle(values: list[float | None]) -> float | None:
        present = [v for v in values if v is not None]
        return round(statistics.median(present), 4) if present else None

    def share_of(cell: dict[str, Any], part: str, share: str) -> float | None:
        return cell[part][share] if cell.get(part) else None

    def added(part: str, share: str) -> float | None:
        shares = [(share_of(mine, part, share), share_of(direct, part, share)) for mine, direct in pairs]
        return middle([m - d for m, d in shares if m is not None and d is not None])

    mine = [m for m, _ in pairs]
    return {
        "rounds": len(pairs),
        "failed": sum(m["failed"] for m in mine),
        "unfinished": sum(m["unfinished"] for m in mine),
        "per_s": middle([m["per_s"] for m in mine]),
        "cpu_ms": middle([m["cpu_ms"] for m in mine]),
        "p50_ms": middle([share_of(m, "latency_ms", "p50") for m in mine]),
        "p99_ms": middle([share_of(m, "latency_ms", "p99") for m in mine]),
        "first_p50_ms": middle([share_of(m, "first_ms", "p50") for m in mine]),
        "gap_p99_ms": middle([share_of(m, "gap_ms", "p99") for m in mine]),
        "added_p50_ms": added("latency_ms", "p50"),
        "added_p99_ms": added("latency_ms", "p99"),
        "added_first_ms": added("first_ms", "p50"),
        "added_gap_p99_ms": added("gap_ms", "p99"),
    }


def _ratios(row: dict[str, Any], bare: dict[str, Any] | None) -> dict[str, float | None]:
    if bare is None:
        return {}
    names = ("added_p50_ms", "first_p50_ms", "per_s", "cpu_ms")
    return {name: round(row[name] / bare[name], 3) if row[name] and bare[name] else None for name in names}


def picked(words: list[str]) -> tuple[list[str], list[Shape]]:
    """The targets and shapes that `--only` names; all of a kind where it names none of it."""
    everything = shapes()
    targets = [t for t in STARTS if t in words] or list(STARTS)
    patterns = [w for w in words if w not in STARTS and w != "direct"]
    chosen = [s for s in everything if not patterns or any(fnmatch.fnmatch(s.name, p) for p in patterns)]
    if not chosen:
        raise SystemExit(f"No shape is called {patterns}; there are {', '.join(s.name for s in everything)}.")
    return ["direct", *targets], chosen


def check() -> int:
    """Ratios only: what a machine can do, and what else it does, is in both halves of them. Of each half the lowest
    round counts, since a neighbour can only make one dearer. What is over its bound is measured once more."""
    slow = list(BOUNDS)
    for _ in range(2):
        chosen = [shape for shape in shapes() if shape.name in slow]
        rounds = measure(["direct", "bare", "rlproxy"], chosen, 3, 0.6, None, 0)["rounds"]
        slow = [name for name in slow if not _in_bounds(name, [cells[name] for cells in rounds])]
        if not slow:
            return 0
    return 1


def _in_bounds(name: str, rounds: list[dict[str, Any]]) -> bool:
    lowest = {}
    for target in ("bare", "rlproxy"):
        lowest[target] = min((cell[target]["cpu_ms"] for cell in rounds if cell[target].get("cpu_ms")), default=None)
    failed = sum(cell["rlproxy"].get("failed", 0) for cell in rounds)
    ratio = lowest["rlproxy"] / lowest["bare"] if lowest["bare"] and lowest["rlproxy"] else math.inf
    fine = ratio <= BOUNDS[name] and not failed
    text = f"{ratio:.1f} times the bare relay's CPU, at most {BOUNDS[name]}; {failed} failed"
    print(f"{'ok  ' if fine else 'SLOW'} {name}: {text}", flush=True)
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 where a ratio is over its bound")
    parser.add_argument("--only", nargs="+", default=[], help="targets and shapes, the latter with * and ?")
    parser.add_argument("--before", help="a commit whose rlproxy is measured, too")
    parser.add_argument("--traced", help="the address of an OpenTelemetry collector: an rlproxy that sends to it, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pace", type=float, default=1.0, help="of the usual seconds for each shape")
    parser.add_argument("--resume", action="store_true", help="an unfinished run of the same commit")
    parser.add_argument("--json", type=Path, help="where to write; default benchmarks/relay.json, with --only nowhere")
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(check())
    with ExitStack() as trees:
        if arguments.before:
            tree = trees.enter_context(checked_out(arguments.before))
            STARTS["before"] = partial(rlproxy, name="before", tree=tree)
        if arguments.traced:
            STARTS["traced"] = partial(rlproxy, name="traced", otlp=arguments.traced)
        measured(arguments)


def measured(arguments: argparse.Namespace) -> None:
    targets, chosen = picked(arguments.only)
    if arguments.quick:
        targets = [t for t in targets if arguments.only or t in QUICK]
        chosen = [s for s in chosen if arguments.only or s.quick]
    about = circumstances()
    about["machine"] |= {"python": platform.python_version(), "kernel": platform.release()}
    whole = not arguments.quick and not arguments.only
    began = time.monotonic()
    progress = {"of": [about["commit"], *(shape.name for shape in chosen)]}
    if arguments.resume and HALF.exists() and (half := json.loads(HALF.read_text()))["of"] == progress["of"]:
        progress = half
    rounds, pace = (2, 0.6) if arguments.quick else (arguments.rounds, arguments.pace)
    report = measure(targets, chosen, rounds, pace, progress if whole else None, 0 if arguments.quick else 1000)
    result = {
        **about,
        "seconds": round(time.monotonic() - began, 1), "arguments": vars(arguments) | {"json": None},
        "shapes": [vars(s) for s in chosen], "summary": summary(report), **report,
    }  # fmt: skip
    target = arguments.json or (RESULT if whole else None)
    if target is not None:
        target.write_text(json.dumps(result, indent=1) + "\n")
        HALF.unlink(missing_ok=True)
    else:
        print(json.dumps(result["summary"], indent=1))
