"""The short form of `python -m scripts.chaos.cluster`: some faults of two relays, their database and their replicas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.chaos.cluster import __main__ as cluster
from scripts.chaos.cluster import stored, versions
from scripts.chaos.cluster.clients import Answer, Ledger
from scripts.chaos.cluster.faults import Fault
from scripts.chaos.cluster.versions import Swap
from scripts.harness.postgres import find_binaries


def answer(id: str, *, conversation: str = "1/1", version: int = 0, served: int = 0, began: float = 0.0) -> Answer:
    return Answer(id, conversation, version, served, began, 1)


ROOT = Path(__file__).parents[3]
no_postgres = pytest.mark.skipif(find_binaries() is None, reason="PostgreSQL is not installed")


@pytest.mark.postgres
@pytest.mark.scale
@no_postgres
async def test_what_is_acknowledged_is_stored_once_and_trains_once() -> None:
    result = await cluster.measured(kills=3, clients=8, seed=5, swaps=1)
    assert result["wrong"] == []
    assert result["answers"] > 50 and result["ratings"] > 10
    assert result["runs"]["done"] and result["swaps_in_calm"], result


@pytest.mark.postgres
@pytest.mark.scale
@pytest.mark.timeout(900)
@no_postgres
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes network namespaces")
def test_each_fault_once_with_cuts_and_a_full_disk(tmp_path: Path) -> None:
    """A process of its own: it leaves this machine's network."""
    file = tmp_path / "cluster.json"
    command = [sys.executable, "-m", "scripts.chaos.cluster", "--kills", "14", "--swaps", "3", "--json", str(file)]
    process = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    result = json.loads(file.read_text())
    assert result["network"] and len(result["faults"]) == 14, result


class Server:
    """Rows of a database, by the table that a statement reads first."""

    def __init__(self, **tables: list[tuple[Any, ...]]) -> None:
        self._tables = tables

    def execute(self, sql: str, database: str) -> list[tuple[Any, ...]]:
        return self._tables[sql.partition("rlproxy.")[2].split()[0]]


def test_what_is_missing_or_invented_is_told() -> None:
    server: Any = Server(
        completions=[("a", "done", 0), ("b", "pending", 0), ("d", "done", 0), ("e", "done", 2)],
        ratings=[("a", 1.0), ("a", 1.0), ("d", 1.0), ("c", -1.0)],
    )
    answers = [answer(id) for id in "abc"] + [answer("e", version=1)]
    ledger = Ledger(requests=4, answers=answers, ratings={"a": "bad", "b": "good"})
    assert stored.wrong(server, "any", ledger) == [
        "b was answered and is pending",
        "c was answered and is not stored",
        "e was answered by v1 and is stored as of v2",
        "a has 2 ratings",
        "the rating of b is lost",
        "a is rated 1.0",
        "d is rated by nobody",
        "c is rated by nobody",
    ]


def test_runs_that_hang_or_are_doubled_are_told(tmp_path: Path) -> None:
    server: Any = Server(
        run_samples=[("r1", 1), ("r1", 2), ("r2", 2)],
        ratings=[("x", "error", None), ("y", "done", "it saw a picture")],
        adapters=[(1,), (1,)],
        runs=[(1, "done"), (2, "done"), (3, "running"), (4, "claimed")],
        audit=[
            ('{"live": 1, "was": 0, "reason": "it passed"}',),
            ('{"live": 0, "was": 1, "reason": "it is damaged"}',),
        ],
    )
    journal = tmp_path / "journal"
    times = [(1, 10, 0.0), (1, 10, 5.0), (1, 11, 4.0), (1, 11, 8.0), (2, 12, 9.0)]
    lines = [{"run": run, "process": process, "step": 1, "time": moment} for run, process, moment in times]
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert stored.wrong_runs(server, "any", journal, newest=3) == [
        "the rating r1 trained 2 times",
        "the rating of x can train in no run: error",
        "the rating of y can train in no run: it saw a picture",
        "run 1 made 2 versions",
        "run 2 is done and made no version",
        "run 3 is running in the end",
        "v1 gave way to v0: it is damaged",
        "runs 1 and 1 trained at the same time, for 1.0 s",
    ]


def test_a_conversation_that_goes_back_and_weights_that_lie_are_told() -> None:
    turns = [answer("a", version=1, served=1), answer("b", version=2, served=2), answer("c", version=1, served=2)]
    lies, back = versions.mixed(Ledger(answers=turns), [])
    assert lies == "c says v1 and is of v2"
    assert back.startswith("conversation 1/1 went back: v1 at ")
    assert versions.mixed(Ledger(answers=turns[:2]), []) == []


def test_a_relay_without_its_database_goes_on_with_the_version_that_it_knows() -> None:
    now = time.time()
    turns = [answer("a", version=2, served=2, began=now - 9), answer("b", version=1, served=1, began=now)]
    cut = Fault("a relay is cut off the database", now - 8, now - 2)
    assert versions.mixed(Ledger(answers=turns), [cut]) == []
    assert versions.summary([], Ledger(answers=turns), [cut])["conversations_back_without_the_database"] == 1
    for other in (cut._replace(name="a relay is cut off a replica"), cut._replace(ended=now - 6)):
        assert len(versions.mixed(Ledger(answers=turns), [other])) == 1


def test_a_swap_that_is_late_with_nothing_broken_is_told() -> None:
    class Cluster:
        replicas = ()

        def names(self, version: int) -> list[str]:
            return []

    now = time.time()
    faults = [Fault("a relay is killed", now - 60, now - 58)]
    assert versions.is_calm(faults, now) and not versions.is_calm(faults, now - 55)
    swaps = [Swap(2, now, 6.0, True), Swap(3, now + 20, 7.0, False), Swap(4, now + 40, 0.1, True)]
    late = answer("a", version=3, served=3, began=now + 46)
    assert versions.problems(swaps, Ledger(answers=[late]), Cluster(), []) == [  # type: ignore[arg-type]
        "v2 was not at all replicas 5 s after it went live (6.0)",
        "1 answers of an older version 5 s after v4 went live",
    ]
