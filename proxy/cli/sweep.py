"""`rlproxy train --tune` and `--follow`: what a sweep of learning rates tries and found, and how far a run is.

Owns the words. Run and sweep (trainer.run.rate_finder) go on when this command ends, and what a sweep found stays,
whatever becomes of the run.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from proxy.cli.common import print_json
from proxy.cli.failing import fail
from proxy.cli.http import HomeClient

LOOK_S: Final = 0.5
INTERRUPTED: Final = 130  # as a shell reports Ctrl-C
ENDED: Final = ("done", "rejected", "empty", "failed", "cancelled")
GOES_ON: Final = "the sweep goes on without this command, and what it finds is kept: `rlproxy status` shows the run"


def newest_run(client: HomeClient) -> int:
    return max((run["id"] for run in client.call("GET", "/rl/runs")["data"]), default=0)


def follow(client: HomeClient, newest: int, reason: str, *, as_json: bool) -> None:
    """Lines as the run tries rates, until it has one or has ended. `newest`: the newest run of before it."""
    _say(f"a training run starts with {reason}; it looks for a learning rate first", as_json)
    run: dict[str, Any] | None = None
    printed_count = 0
    try:
        while True:
            if run is None and (id := newest_run(client)) > newest:
                run = {"id": id}
            if run is not None:
                run = client.call("GET", f"/rl/runs/{run['id']}")
                printed_count = _show(run["sweep"], printed_count, as_json)
                if run["tuned"] is not None or run["status"] in ENDED:
                    break
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        _say(GOES_ON, as_json)
        if as_json:
            print_json(_summarise(run))
        sys.exit(INTERRUPTED)
    if as_json:
        print_json(_summarise(run))
    if run["tuned"] is None:
        fail(f"run {run['id']} ended before its sweep did: {run['reason']}")
    _say(f"{run['tuned']:.2g} is the highest rate without harm; run {run['id']} trains with it", as_json)


def follow_run(client: HomeClient, newest: int, reason: str) -> None:
    """Lines as the run goes from stage to stage, until it has ended; then what it changed. `newest`: the newest run of
    before it."""
    print(f"a training run starts with {reason}", flush=True)
    previous_line = ""
    try:
        while True:
            status = client.call("GET", "/rl/status")
            last = status["last_run"]
            if last and last["id"] > newest and last["status"] in ENDED:
                break
            line = status["training"]["line"]
            if line != previous_line and sys.stdout.isatty():
                print(f"\r\033[K{line}", end="", flush=True)
            elif _stage_of(line) != _stage_of(previous_line):
                print(line, flush=True)
            previous_line = line
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        print("\nthe run goes on without this command; `rlproxy status` shows it", flush=True)
        sys.exit(INTERRUPTED)
    print("\r\033[K" if sys.stdout.isatty() else "", end="")
    print(f"run {last['id']}: {last['status']}{': ' + last['reason'] if last['reason'] else ''}")
    if changed := status["changed"]:
        print(f"v{status['live']}: {changed['line']}; `rlproxy adapters v{status['live']}` shows it in three prompts")


def _stage_of(line: str) -> str:
    """Without its counts and time to go, which change each second."""
    return ",".join(line.split(",")[:2])


def _show(sweep: list[dict[str, Any]], printed_count: int, as_json: bool) -> int:
    for attempt in sweep[printed_count:]:
        shift = "out of all bounds" if attempt["moved"] is None else f"{attempt['moved']:.3f} nats a token"
        _say(f"  {attempt['rate']:.2g}: two steps move the model {shift}", as_json)
    return len(sweep)


def _summarise(run: dict[str, Any] | None) -> dict[str, Any]:
    fields = run or {}
    return {"run": fields.get("id"), "sweep": fields.get("sweep", []), "tuned": fields.get("tuned")}


def _say(line: str, as_json: bool) -> None:
    print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
