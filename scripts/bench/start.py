"""How long until `rlproxy serve` is ready, what it takes at rest, and how long `--help` is.

    python -m scripts.bench.start [--home DIR] [--times N] [--quick] [--json FILE]

Writes benchmarks/start.json; `--quick` takes each twice and writes nothing unless told where. `--home` also starts over
a home that has something in it: scripts/bench/store/alone.py leaves one with a million completions. Those starts follow
a clean stop and a `kill -9`. Then the check beside the serving is timed, too, and an answer meanwhile. Beside each
stands a Python that only imports what a server in aiohttp needs, because that is where such a process begins. One start
of each is not counted: it compiles, as an installer does.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.relay.targets import stop, upstream
from scripts.harness.circumstances import circumstances
from store.file.schema import NAME

ROOT = Path(__file__).resolve().parents[2]
REST_S = 3.0  # until it is at rest
READY_S = 120.0
CHECKED_S = 600.0
TYPE = "application/json"
ASK = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # or all compile anew


def command(code: list[str]) -> dict[str, float]:
    """To its end: seconds, and what it computed."""
    start = os.times()
    began = time.perf_counter()
    subprocess.run([sys.executable, *code], cwd=ROOT, env=ENV, stdout=subprocess.DEVNULL, check=True)
    end = os.times()
    cpu = end.children_user + end.children_system - start.children_user - start.children_system
    return {"s": time.perf_counter() - began, "cpu_s": cpu}


def serve(home: Path, url: str) -> dict[str, float]:
    """From the command to the first 200 of /readyz, and at rest."""
    process, ready, _ = started(home, url)
    try:
        time.sleep(REST_S)
        cpu_before = sum(process.cpu_times()[:2])
        time.sleep(REST_S)
        memory = process.memory_full_info()
        idle = (sum(process.cpu_times()[:2]) - cpu_before) / REST_S
        return ready | {"rss_mb": memory.rss / 1e6, "uss_mb": memory.uss / 1e6, "idle_cpu": idle}
    finally:
        stop(process)


def serve_killed(home: Path, url: str) -> dict[str, float]:
    """After `kill -9`: until it is ready, an answer while the database is checked, and until that is done."""
    process, _, address = started(home, url)
    process.kill()
    process.wait()
    process, ready, address = started(home, url)
    try:
        began = time.perf_counter()
        request = urllib.request.Request(f"{address}/v1/chat/completions", data=ASK, headers={"content-type": TYPE})
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
        answer = time.perf_counter() - began
        states = [_database(address)]
        over = time.perf_counter() + CHECKED_S
        while states[-1] == "checking" and time.perf_counter() < over:
            time.sleep(0.2)
            states.append(_database(address))
        if states[-1] != "sound":
            raise SystemExit(f"the database is {states[-1]} after {CHECKED_S:.0f} s")
        return ready | {"answer_s": answer, "beside": float(states[0] == "checking"), "checked_s": _since(began)}
    finally:
        stop(process)


def _database(url: str) -> str:
    with urllib.request.urlopen(f"{url}/rl/status", timeout=60) as response:
        return str(json.load(response)["database"]["state"])


def _since(began: float) -> float:
    return time.perf_counter() - began


def started(home: Path, url: str) -> tuple[psutil.Popen, dict[str, float], str]:
    """The process, how long it took to be ready, and where it answers."""
    address = home / "serving.json"
    address.unlink(missing_ok=True)
    began = time.perf_counter()
    with (home / "start.log").open("w") as log:
        process = psutil.Popen(
            [
                *(sys.executable, "-m", "proxy.cli", "serve", "--home", str(home), "--port", "0"),
                *("--backend", "openai", "--backend-url", url, "--model", "m", "--log-level", "warning"),
            ],
            cwd=ROOT, env=ENV, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        while not address.exists() or not _ready(json.loads(address.read_text())["url"]):
            if process.poll() is not None or time.perf_counter() - began > READY_S:
                raise SystemExit(f"rlproxy was not ready: {(home / 'start.log').read_text()[-500:]}")
            time.sleep(0.002)
        ready = {"s": time.perf_counter() - began, "cpu_s": sum(process.cpu_times()[:2])}
        return process, ready, str(json.loads(address.read_text())["url"])
    except BaseException:
        stop(process)
        raise


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def middle(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="one with completions in it")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times = 2 if arguments.quick else arguments.times
    about = circumstances()
    report: dict[str, Any] = {"times": times}
    with tempfile.TemporaryDirectory() as name:
        url = upstream(Path(name))
        home = Path(name) / "home"
        home.mkdir()
        try:
            serve(home, url)
            rows: dict[str, list[dict[str, float]]] = {"python, aiohttp": [], "--help": [], "serve": []}
            for _ in range(times):  # one after the other, so that what else the machine does meets all
                rows["python, aiohttp"].append(command(["-c", "import aiohttp.web"]))
                rows["--help"].append(command(["-m", "proxy.cli", "--help"]))
                rows["serve"].append(serve(home, url))
                if arguments.home is not None:
                    rows.setdefault("serve, large home", []).append(serve(arguments.home, url))
                    rows.setdefault("serve, large home, killed", []).append(serve_killed(arguments.home, url))
        finally:
            for child in psutil.Process().children():
                stop(child)
    report |= {name: middle(samples) for name, samples in rows.items()}
    if arguments.home is not None:
        with closing(sqlite3.connect(arguments.home / NAME)) as db:
            (report["large_completions"],) = db.execute("SELECT count(*) FROM completions").fetchone()
    base = report["python, aiohttp"]["s"]
    report["of_python"] = {name: round(report[name]["s"] / base, 2) for name in rows}
    result = about | report
    print(json.dumps(report, indent=1))
    target = arguments.json or (None if arguments.quick else ROOT / "benchmarks/start.json")
    if target is not None:
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
