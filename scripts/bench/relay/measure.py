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
    found = []
    for kind in ("plain", "stream"):
        found += [Shape(f"{kind}-1k-{n}", kind, 1000, 1, n, quick=n in (1, 16)) for n in (1, 16, 64, 256)]
        found += [Shape(f"{kind}-100k-{n}", kind, 100_000, 21, n) for n in (1, 16)]
        found += [Shape(f"{kind}-1M-{n}", kind, 1_000_000, 61, n, quick=(kind, n) == ("plain", 1)) for n in (1, 16)]
    # A chunk every 10 ms, as a model says them: time to the first, and the gaps.
    found += [
        Shape(f"paced-{n}", "stream", 1000, 1, n, chunks=40, gap_ms=10, seconds=2.0, quick=n == 16) for n in (1, 16)
    ]
    found.append(Shape("new-100k-1", "plain", 100_000, 21, 1, fresh=True))
    # Two turns of one conversation, with as much new text: what does its length cost?
    found += [Shape(f"turn-{n}", "plain", 500 * (2 * n - 1), 2 * n - 1, 1) for n in (2, 200)]
    return found


IDLE = Shape("idle-1000", "stream", 1000, 1, 1000, chunks=2, gap_ms=120_000, seconds=IDLE_S)


class Client:
    """The process that asks."""

    def __init__(self) -> None:
        command = [sys.executable, str(ROOT / "scripts/bench/relay/load.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._asked = 0

    def load(self, shape: Shape, target: Target, seconds: float) -> dict[str, Any]:
        self._asked += 10**7  # no two requests are alike
        return self._order(shape.order(self._asked, seconds) | target.order)

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
    before = target.cpu_s()
    found = client.load(shape, target, seconds)
    cpu = target.cpu_s() - before
    found["per_s"] = round(found["answers"] / found["seconds"], 2)
    here = target.name == "direct"  # nobody in between
    found["cpu_ms"] = round(cpu / found["answers"] * 1000, 4) if found["answers"] and not here else None
    found["warm_answers"] = warm["answers"]
    return found


def memory(client: Client, target: Target, streams: int) -> dict[str, Any]:
    if not target.process.is_running():
        return {"error": ENDED}
    before = target.rss_mb()
    shape = Shape(**(vars(IDLE) | {"at_once": streams}))
    found = client.idle(shape, target)
    with_streams = target.rss_mb()
    client.drop()
    time.sleep(0.5)
    return {"rss_mb_before": round(before, 1), "rss_mb": round(with_streams, 1), **found}


def measure(
    targets: list[str], chosen: list[Shape], rounds: int, pace: float, done: dict[str, Any] | None, streams: int
) -> dict[str, Any]:
    """`done`: what an earlier run has; `pace`: how much shorter than usual each shape is."""
    client = Client()
    try:
        # Not in memory: a commit is to cost what it costs.
        with tempfile.TemporaryDirectory(dir=Path.home() / ".cache/rlproxy") as name, ExitStack() as stack:
            folder = Path(name)
            url = upstream(folder)
            there = {"direct": Target("direct", url, psutil.Process(), "raw asyncio")}
            found = {"targets": {}, "rounds": [], "memory": {}, **(done or {})}
            for one in targets:
                start_one(stack, client, one, folder, url, there, found)
            already = len(found["rounds"])
            for n in range(already, rounds):
                found["rounds"].append(one_round(client, chosen, list(there.values()), n, pace))
                if done is not None:
                    HALF.write_text(json.dumps(found))
            for target in there.values():
                if target.name != "direct":
                    if target.process.is_running():
                        found["targets"][target.name]["rss_mb_after"] = round(target.rss_mb(), 1)
                    if streams:
                        found["memory"][target.name] = memory(client, target, streams)
                        print(f"{target.name:14} idle streams {found['memory'][target.name]}", flush=True)
            stack.close()
            check_captured(there, found, already)
            return found
    finally:
        client.close()
        for child in psutil.Process().children():
            stop(child)


def start_one(
    stack: ExitStack, client: Client, name: str, folder: Path, url: str, there: dict[str, Target], found: dict[str, Any]
) -> None:
    """One that does not run gets a row that says why."""
    if name == "direct":
        found["targets"][name] = {"version": there[name].version}
        return
    try:
        target = stack.enter_context(running(name, folder, url))
        time.sleep(0.5)
        rest = target.rss_mb()
        first = client.load(Shape("first", "plain", 1000, 1, 1), target, 0.0)
        if not first["answers"]:
            raise Failed(f"its first answer: {(first['errors'] or ['none in 10 s'])[0]}")
        there[name] = target
        found["targets"][name] = {"version": target.version, "rss_mb_at_rest": round(rest, 1)}
    except Failed as error:
        found["targets"][name] = {"error": str(error)[:500]}
    print(f"{name:14} {found['targets'][name]}", flush=True)


def one_round(client: Client, chosen: list[Shape], targets: list[Target], n: int, pace: float) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for at, shape in enumerate(chosen):
        shift = (n + at) % len(targets)  # nobody always comes first
        made[shape.name] = {}
        for target in targets[shift:] + targets[:shift]:
            try:
                found = cell(client, shape, target, shape.seconds * pace)
            except psutil.NoSuchProcess:
                found = {"error": ENDED, "answers": 0}
            made[shape.name][target.name] = found
            took = found.get("latency_ms") or {"p50": float("nan"), "p99": float("nan")}
            print(
                f"round {n + 1}  {shape.name:13} {target.name:14} {found.get('per_s', 0):8.1f}/s  "
                f"p50 {took['p50']:9.2f}  p99 {took['p99']:9.2f}  cpu {found.get('cpu_ms') or 0:8.3f} ms  "
                f"{found.get('error') or (found['errors'][:1] if found['failed'] else '')}",
                flush=True,
            )
    return made


def check_captured(there: dict[str, Target], found: dict[str, Any], already: int) -> None:
    """Whatever a client has seen whole is in the database; that of earlier rounds was in another one."""
    for target in there.values():
        if target.home is None:
            continue
        with closing(sqlite3.connect(target.home / "rlproxy.db")) as db:
            (stored,) = db.execute("SELECT count(*) FROM completions WHERE status = 'done'").fetchone()
        made = [by_target for one in found["rounds"][already:] for by_target in one.values()]
        cells = [by_target[target.name] for by_target in made if target.name in by_target]
        seen = sum(c["answers"] + c.get("warm_answers", 0) for c in cells) + 1
        found["targets"][target.name] |= {"answers": seen, "stored": stored}
        print(f"{target.name:14} {seen} answers, {stored} stored", flush=True)
        if stored < seen:
            raise SystemExit(f"{target.name} lost {seen - stored} answers that its clients had whole.")


# --- what it means -----------------------------------------------------------------------------------------------


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """For each shape and target: medians over rounds, and what it adds to direct in the same round."""
    made: dict[str, Any] = {}
    for shape in found["rounds"][0]:
        made[shape] = {}
        for target in found["targets"]:
            rows = [(r[shape].get(target), r[shape]["direct"]) for r in found["rounds"]]
            pairs = [(mine, direct) for mine, direct in rows if mine and mine["answers"] and direct["answers"]]
            if pairs:
                made[shape][target] = _medians(pairs)
    for by_target in made.values():
        for row in by_target.values():
            row["of_bare"] = _ratios(row, by_target.get("bare"))
    return made


def _medians(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    def middle(values: list[float | None]) -> float | None:
        there = [v for v in values if v is not None]
        return round(statistics.median(there), 4) if there else None

    def at(cell: dict[str, Any], part: str, share: str) -> float | None:
        return cell[part][share] if cell.get(part) else None

    def added(part: str, share: str) -> float | None:
        both = [(at(mine, part, share), at(direct, part, share)) for mine, direct in pairs]
        return middle([m - d for m, d in both if m is not None and d is not None])

    mine = [m for m, _ in pairs]
    return {
        "rounds": len(pairs),
        "failed": sum(m["failed"] for m in mine),
        "unfinished": sum(m["unfinished"] for m in mine),
        "per_s": middle([m["per_s"] for m in mine]),
        "cpu_ms": middle([m["cpu_ms"] for m in mine]),
        "p50_ms": middle([at(m, "latency_ms", "p50") for m in mine]),
        "p99_ms": middle([at(m, "latency_ms", "p99") for m in mine]),
        "first_p50_ms": middle([at(m, "first_ms", "p50") for m in mine]),
        "gap_p99_ms": middle([at(m, "gap_ms", "p99") for m in mine]),
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
        slow = [name for name in slow if not _in_bounds(name, [one[name] for one in rounds])]
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
    said = f"{ratio:.1f} times the bare relay's CPU, at most {BOUNDS[name]}; {failed} failed"
    print(f"{'ok  ' if fine else 'SLOW'} {name}: {said}", flush=True)
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
    given = parser.parse_args()
    if given.check:
        sys.exit(check())
    with ExitStack() as trees:
        if given.before:
            tree = trees.enter_context(checked_out(given.before))
            STARTS["before"] = partial(rlproxy, name="before", tree=tree)
        if given.traced:
            STARTS["traced"] = partial(rlproxy, name="traced", otlp=given.traced)
        measured(given)


def measured(given: argparse.Namespace) -> None:
    targets, chosen = picked(given.only)
    if given.quick:
        targets = [t for t in targets if given.only or t in QUICK]
        chosen = [s for s in chosen if given.only or s.quick]
    about = circumstances()
    about["machine"] |= {"python": platform.python_version(), "kernel": platform.release()}
    whole = not given.quick and not given.only
    began = time.monotonic()
    done = {"of": [about["commit"], *(shape.name for shape in chosen)]}
    if given.resume and HALF.exists() and (half := json.loads(HALF.read_text()))["of"] == done["of"]:
        done = half
    rounds, pace = (2, 0.6) if given.quick else (given.rounds, given.pace)
    found = measure(targets, chosen, rounds, pace, done if whole else None, 0 if given.quick else 1000)
    result = {
        **about,
        "seconds": round(time.monotonic() - began, 1), "arguments": vars(given) | {"json": None},
        "shapes": [vars(s) for s in chosen], "summary": summary(found), **found,
    }  # fmt: skip
    target = given.json or (RESULT if whole else None)
    if target is not None:
        target.write_text(json.dumps(result, indent=1) + "\n")
        HALF.unlink(missing_ok=True)
    else:
        print(json.dumps(result["summary"], indent=1))
