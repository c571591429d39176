"""`make test-clients`: installs real clients, drives each through rlproxy, and writes what each cell came to.

    python -m scripts.clients [NAME ...] [--json FILE]

NAME is that of a driver's file. The file benchmarks/clients.json keeps the newest result of every client, with its
versions, date, and machine. `python -m scripts.docs.tables` makes the table of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from scripts.clients.drivers import Driver, drivers
from scripts.clients.install import install_all
from scripts.harness.circumstances import ROOT, circumstances

TESTS: Final = "tests/clients/test_every_client.py"
RESULTS: Final = ROOT / "benchmarks/clients.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a driver; all of them if none is given")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept")
    arguments = parser.parse_args()
    names = arguments.names
    by_id = {driver.id: driver for driver in drivers()}
    if unknown := set(names) - by_id.keys():
        parser.error(f"No driver is called {', '.join(sorted(unknown))}. Choose from {', '.join(by_id)}.")
    chosen = [by_id[name] for name in names or by_id]
    install_all(chosen)
    return 1 if sum(not _driven(driver, arguments.json) for driver in chosen) else 0


def _driven(driver: Driver, results: Path) -> bool:
    """Tell whether all cells of a driver are as its head says. Where a test failed, its output is shown."""
    about, began = circumstances(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "clients",
            "-n",
            "0",
            "-q",
            "--tb=short",
            "-o",
            "junit_family=xunit1",
            TESTS,
        ]
        environment = {**os.environ, "RLPROXY_CLIENTS": driver.id}
        process = subprocess.run(
            [*command, f"--junitxml={report}"], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        root = ElementTree.parse(report).getroot() if report.exists() else ElementTree.Element("none")
    print(f"{driver.name}: {'as said' if process.returncode == 0 else 'FAILED'}", flush=True)
    if process.returncode:
        print(process.stdout)
    seconds = round(time.monotonic() - began)
    result = {"packages": driver.packages, **about, "seconds": seconds, "cells": cells(root)}
    _keep(results, driver, {**result, **({"side": rules} if (rules := side_turns(root)) else {})})
    return process.returncode == 0


def cells(report: ElementTree.Element) -> dict[str, dict[str, str]]:
    """By format, then by cell. A cell whose test failed has no outcome but `failed`."""
    by_way: dict[str, dict[str, str]] = {}
    for case in report.iter("testcase"):
        entries = [entry for entry in case.iter("property") if entry.get("name") == "cell"]
        for entry in entries:
            way, cell, outcome = str(entry.get("value")).split("|")
            failed = case.find("failure") is not None or case.find("error") is not None
            by_way.setdefault(way, {})[cell] = "failed" if failed else outcome
    return by_way


def side_turns(report: ElementTree.Element) -> dict[str, dict[str, int]]:
    """By format: how many requests of a client's own were told by each rule."""
    values = [str(item.get("value")) for item in report.iter("property") if item.get("name") == "side"]
    return {way: json.loads(rules) for way, _, rules in (value.partition("|") for value in values)}


def _keep(results: Path, driver: Driver, result: dict[str, Any]) -> None:
    """Beside the results of the others; those of drivers that are gone go."""
    stored = json.loads(results.read_text()) if results.exists() else {}
    stored = {name: entry for name, entry in stored.items() if (driver.file.parent / entry["file"]).exists()}
    stored[driver.id] = {"file": driver.file.name, **result}
    results.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
