"""Half an hour of 50 clients, with ratings, runs and swaps beside: memory flat, nothing leaked, nothing lost.

`python -m scripts.chaos.soak [--minutes 30] [--clients 50] [--json FILE]` writes benchmarks/soak.json; status 1 where
something did not hold. The proxy is a process of its own; the backend and the trainer are the tests' fakes, so that
what grows is ours. It needs nobody beside it and ends by itself. Docs: docs/lab/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from scripts.chaos.check import wrong
from scripts.chaos.people import Ledger, Person
from scripts.fakes.backend import FakeBackend
from scripts.harness.circumstances import commit, machine_name, now
from store.file.schema import NAME

ROOT = Path(__file__).resolve().parents[2]
SLOPE = 1.0  # MB a minute after the warm-up: the bound
LONG = 20.0  # minutes, from which on a slope says something
WARM_UP = 0.2  # of the time, at most five minutes
EVERY_S = 10.0
SETTLE_S = 8.0  # connections that are kept close by themselves after 4
RUN_S = 2.0  # of a fake run
START_AT = 40
LEAVES = 0.05  # share of the requests whose client hangs up in the middle
PATIENCE_S = 300.0  # for everything after the load: then it is ended, whatever it does


class Proxy:
    """Its process, and what it has open."""

    def __init__(self, home: Path, backend: FakeBackend) -> None:
        flags: dict[str, Any] = {
            "home": str(home),
            "backend.kind": "vllm",
            "backend.url": backend.url,
            "log.level": "warning",
        }
        flags |= {"train.weights": "/nowhere", "train.start_at": START_AT, "train.min_free_memory_gb": 0}
        self._command = [sys.executable, "-m", "scripts.chaos.fake_trainer", json.dumps(flags), str(RUN_S)]
        self.log = home.parent / "proxy.log"

    async def start(self) -> None:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        self.url = (await self._line())["url"]
        self.ps = psutil.Process(self._process.pid)

    async def open(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        counts = await self._line()
        names = Counter(counts["tasks"])
        return {
            "tasks": sum(names.values()),
            "by_name": dict(names),
            "files": self.ps.num_fds(),
            "connections": sum(c.status == psutil.CONN_ESTABLISHED for c in self.ps.net_connections()),
            "threads": self.ps.num_threads(),
            "rss_mb": self.rss(),
            "runs": counts["runs"],
        }

    def rss(self) -> float:
        return round(float(self.ps.memory_info().rss) / 2**20, 2)

    async def stop(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(120):
            line = await self._process.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        return dict(json.loads(line))


async def client(person: Person, http: aiohttp.ClientSession, until: float, pause: float, dice: random.Random) -> int:
    """Returns how often it hung up. Whatever the proxy refuses or breaks is raised."""
    hang_ups = 0
    while time.monotonic() < until:
        if dice.random() < LEAVES:
            await hang_up(http, dice)
            hang_ups += 1
        else:
            answer = await person.ask(http)
            if dice.random() < 0.5:
                await person.judge(http, answer)
        await asyncio.sleep(dice.uniform(0.05, 1.0) * pause)
    return hang_ups


async def hang_up(http: aiohttp.ClientSession, dice: random.Random) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "left " * 30}], "stream": True}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(dice.uniform(0.01, 0.2)):
            async with http.post("/v1/chat/completions", json=body) as response:
                await response.read()


async def watched(proxy: Proxy, until: float, rows: list[dict[str, float]]) -> None:
    began = time.monotonic()
    while time.monotonic() < until:
        elapsed_s = round(time.monotonic() - began, 1)
        cpu = await asyncio.to_thread(proxy.ps.cpu_percent, 1.0)
        rows.append({"s": elapsed_s, "rss_mb": proxy.rss(), "files": proxy.ps.num_fds(), "cpu": cpu})
        print(
            f"{elapsed_s:7.0f} s  {rows[-1]['rss_mb']:8.2f} MB  {rows[-1]['files']:4.0f} files  {cpu:3.0f} % cpu",
            flush=True,
        )
        await asyncio.sleep(min(EVERY_S, max(0.0, until - time.monotonic())))


def slope(rows: list[dict[str, float]]) -> float:
    """MB a minute, by least squares."""
    n = len(rows)
    if n < 2:
        return 0.0
    xs, ys = [row["s"] / 60 for row in rows], [row["rss_mb"] for row in rows]
    x, y = sum(xs) / n, sum(ys) / n
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


async def load(
    proxy: Proxy, people: list[Person], seconds: float, pause: float, dice: random.Random
) -> tuple[int, list[Any]]:
    """All of them for so long; how often one hung up, and the memory meanwhile."""
    until = time.monotonic() + seconds
    rows: list[dict[str, float]] = []
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(proxy.url, timeout=timeout, connector=connector) as http,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(watched(proxy, until, rows))
        work = [client(person, http, until, pause, random.Random(dice.random())) for person in people]
        tasks = [group.create_task(coroutine) for coroutine in work]
    return sum(task.result() for task in tasks), rows


async def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    dice = random.Random(options.seed)
    backend = FakeBackend()
    backend.pause_s = 0.02
    await backend.start()
    forgetting = asyncio.create_task(forgetful(backend))
    proxy = Proxy(folder / "home", backend)
    ledger = Ledger()
    people = [Person(ledger, time.monotonic, dice.randrange(2**32)) for _ in range(options.clients)]
    await proxy.start()
    try:
        await load(proxy, people, 10.0, options.pause, dice)  # whatever is made once is made now
        start = await settled(proxy)
        hang_ups, rows = await load(proxy, people, options.minutes * 60, options.pause, dice)
        end = await settled(proxy)
        async with aiohttp.ClientSession(proxy.url) as http, http.get("/rl/status") as response:
            live, problem = (await response.json())["live"], (await response.json())["problem"]
        status = await proxy.stop()
    finally:
        proxy.kill()
        forgetting.cancel()
        await backend.stop()
    lost = await asyncio.to_thread(wrong, folder / "home", ledger)
    warm = [row for row in rows if row["s"] >= min(300.0, WARM_UP * options.minutes * 60)]
    return {
        "minutes": options.minutes,
        "clients": options.clients,
        "answers": len(ledger.answers),
        "acts": ledger.acknowledged,
        "hung_up": hang_ups,
        "runs": end["runs"],
        "live": live,
        "problem_in_status": problem,
        "versions": len(list((folder / "home" / "adapters_out").glob("*/v*"))),
        "database_mb": round((folder / "home" / NAME).stat().st_size / 2**20, 1),
        "slope_mb_per_min": round(slope(warm), 3),
        "peak_mb": max(row["rss_mb"] for row in rows),
        "start": start,
        "end": end,
        "stopped_with": status,
        "errors_logged": proxy.log.read_text().count("[error"),
        "wrong": lost,
        "rows": rows,
    }


async def settled(proxy: Proxy) -> dict[str, Any]:
    """Count what is open when nobody asks any more; a run that is under way ends first."""
    await asyncio.sleep(SETTLE_S)
    previous: dict[str, Any] = {}
    now = await proxy.open()
    for _ in range(10):
        if now["connections"] == 0 and now["runs"] == previous.get("runs"):
            break
        await asyncio.sleep(SETTLE_S)
        previous, now = now, await proxy.open()
    return now


def leaked(start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    kinds = [kind for kind in ("tasks", "files", "connections") if end[kind] > start[kind]]
    return [f"{kind}: {start[kind]} before, {end[kind]} after" for kind in kinds]


async def forgetful(backend: FakeBackend) -> None:
    """The fake writes down all that it hears, which is nobody's here."""
    while True:
        await asyncio.sleep(5)
        for records in (backend.requests, backend.asked, backend.headers, backend.unloaded):
            records.clear()


def verdict(report: dict[str, Any]) -> list[str]:
    problems = [*report["wrong"], *leaked(report["start"], report["end"])]
    if report["minutes"] >= LONG and report["slope_mb_per_min"] >= SLOPE:
        problems.append(f"memory grows by {report['slope_mb_per_min']} MB a minute")
    if report["stopped_with"] != 0:
        problems.append(f"it stopped with {report['stopped_with']}")
    if not report["runs"] or not report["live"]:
        problems.append("nothing was trained or swapped: the soak has shown little")
    return problems


async def main(options: argparse.Namespace) -> int:
    logging.getLogger("aiohttp.server").disabled = True  # of the fake backend, whose clients hang up
    folder = Path(tempfile.mkdtemp(prefix="rlproxy-soak-"))
    report: dict[str, Any] = {"date": now(), "machine": machine_name(), "commit": commit(), "seed": options.seed}
    report["load_before"] = round(os.getloadavg()[0], 1)
    async with asyncio.timeout(options.minutes * 60 + PATIENCE_S):
        report |= await soak(options, folder)
    problems = verdict(report)
    report |= {"problems": problems, "ok": not problems}
    options.json.write_text(json.dumps(report, ensure_ascii=False).replace('{"s"', '\n{"s"') + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "rows"}, indent=1, ensure_ascii=False))
    if problems:
        print(f"The home and the log are kept: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--pause", type=float, default=1.5, help="longest time that a client thinks, in seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "soak.json")
    arguments = parser.parse_args()
    signal.alarm(int(arguments.minutes * 60 + 2 * PATIENCE_S))  # whatever hangs; the proxy ends when its stdin closes
    sys.exit(asyncio.run(main(arguments)))
