"""sbatch, squeue and scancel without a cluster: jobs run in the background, and keep their states as Slurm does.

Owns what rlproxy uses of them: names, singletons, `--states=all`, SIGTERM and then SIGKILL after a grace. A test can
preempt a job, end it at its time limit, or lose its node (`end`). It is a fake: no scheduler, no accounting, one node.
`install` writes the three programs into a folder for PATH.

    python -m scripts.fakes.slurm FOLDER sbatch|squeue|scancel|work …
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

KILL_WAIT_S: Final = 30.0  # between SIGTERM and SIGKILL, as KillWait
LOOK_S: Final = 0.05
ACTIVE: Final = ("PENDING", "RUNNING", "COMPLETING")
ROOT: Final = Path(__file__).resolve().parents[2]


def install(programs: Path, folder: Path) -> None:
    """Write the programs; `folder` has their jobs."""
    programs.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("sbatch", "squeue", "scancel"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -m scripts.fakes.slurm {folder} {name} "$@"\n'
        )
        program.chmod(0o755)


@contextlib.contextmanager
def jobs(folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """All jobs by their number, under a lock; what is changed is kept."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "jobs.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        yield content
        path.write_text(json.dumps(content))


def values(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options as --name=value, and what is none."""
    options = dict(argument[2:].partition("=")[::2] for argument in arguments if argument.startswith("--"))
    return options, [argument for argument in arguments if not argument.startswith("--")]


def sbatch(folder: Path, arguments: Sequence[str]) -> int:
    options, _ = values(arguments)
    if (folder / "refuses").exists():
        print((folder / "refuses").read_text(), file=sys.stderr)
        return 1
    with jobs(folder) as table:
        number = str(1 + max((int(key) for key in table), default=100))
        table[number] = {"name": options["job-name"], "state": "PENDING", "options": options}
    subprocess.Popen(
        [sys.executable, "-P", "-m", "scripts.fakes.slurm", str(folder), "work", number],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    print(number)
    return 0


def squeue(folder: Path, arguments: Sequence[str]) -> int:
    options, _ = values(arguments)
    if (folder / "down").exists():
        print("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    if "version" in options:
        print("slurm 23.11.4 (a fake)")
        return 0
    with jobs(folder) as table:
        rows = [(number, job) for number, job in table.items() if job["name"] == options["name"]]
    for number, job in rows:
        if options.get("states") == "all" or job["state"] in ACTIVE:
            print(f"{number}|{job['state']}")
    return 0


def scancel(folder: Path, arguments: Sequence[str]) -> int:
    options, _ = values(arguments)
    with jobs(folder) as table:
        for job in table.values():
            if job["name"] != options["name"] or job["state"] not in ACTIVE:
                continue
            if "state" not in options or job["state"] == options["state"]:
                job["ending"] = "CANCELLED"
    return 0


def end(folder: Path, name: str, state: str) -> None:
    """Do to the job at work under this name what a cluster does: PREEMPTED, NODE_FAIL, TIMEOUT."""
    with jobs(folder) as table:
        for job in table.values():
            if job["name"] == name and job["state"] == "RUNNING":
                job["ending"] = state


def work(folder: Path, number: str) -> int:
    """One job, from its turn to its end."""
    while True:
        with jobs(folder) as table:
            job = table[number]
            if job.get("ending"):
                job["state"] = job["ending"]
                return 0
            earlier_jobs = [
                each for key, each in table.items() if each["name"] == job["name"] and int(key) < int(number)
            ]
            is_held = (folder / "held").exists() or any(each["state"] in ACTIVE for each in earlier_jobs)
            if not is_held:
                job["state"] = "RUNNING"
                break
        time.sleep(LOOK_S)
    with Path(job["options"]["output"]).open("ab") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", job["options"]["wrap"]],
            cwd=job["options"]["chdir"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    state, killed_at = None, 0.0
    while process.poll() is None:
        with jobs(folder) as table:
            ending = table[number].get("ending")
        if ending == "NODE_FAIL":  # nobody gets a last word
            os.killpg(process.pid, signal.SIGKILL)
        elif ending and state is None:
            process.terminate()
            killed_at = time.monotonic() + KILL_WAIT_S
        elif state is not None and time.monotonic() > killed_at:
            os.killpg(process.pid, signal.SIGKILL)
        state = ending
        time.sleep(LOOK_S)
    with jobs(folder) as table:
        ending = table[number].get("ending")
        table[number]["state"] = ending or ("COMPLETED" if process.returncode == 0 else "FAILED")
    return 0


def main() -> int:
    folder, verb, *arguments = sys.argv[1:]
    if verb == "work":
        return work(Path(folder), arguments[0])
    return {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[verb](Path(folder), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
