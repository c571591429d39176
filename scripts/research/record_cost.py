"""Measure the cost of recording one answer of 1 kB: CPU of the store's writer thread, pages of the log, statements.

    python -m scripts.research.record_cost [--answers N] [--json FILE]

Answers end in groups of so many, as the writer commits them; the log goes into the file as the writer moves it. No
event loop runs beside it. CPU is the median of windows of 500 answers, in microseconds an answer. To compare with an
earlier tree run this file with that tree as the working directory and in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from scripts.bench.store_alone import CACHE, message, pair, text
from scripts.harness.circumstances import circumstances
from store.captured.recording import record
from store.file import schema
from store.file.writer import CHECKPOINT_CHANGES
from store.records import FinishedCompletion, NewCompletion

GROUPS: Final = (1, 6, 16)
WINDOW: Final = 500  # answers
FRAME: Final = 4096 + 24  # bytes of a page in the log


def answer(n: int) -> tuple[NewCompletion, FinishedCompletion]:
    """The first turn of a conversation, without token ids, as a plain backend answers."""
    new, end = pair(f"rl-{n:012d}", (message("user", text(n, 60)),), text(n + 7, 130))
    thread = os.urandom(16)
    return new, replace(end, token_ids=None, logprobs=None, prompt_token_ids=None, exact=False, thread=thread)


def in_transaction(db: sqlite3.Connection, rows: Sequence[tuple[NewCompletion, FinishedCompletion]]) -> None:
    db.execute("BEGIN IMMEDIATE")
    record(db, rows)


def measured(group: int, answers: int, folder: Path) -> dict[str, Any]:
    file = folder / schema.NAME
    log = folder / f"{schema.NAME}-wal"
    with closing(schema.open_database(file)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        given = [answer(n) for n in range(answers)]
        changes, frames = db.total_changes, 0
        windows: list[dict[str, float]] = []
        spent = dict.fromkeys(("record", "commit", "checkpoint"), 0.0)

        def timed(step: str, do: Callable[[], object]) -> None:
            at = time.thread_time()
            do()
            spent[step] += time.thread_time() - at

        for at in range(0, answers, group):
            some = given[at : at + group]
            timed("record", partial(in_transaction, db, some))
            timed("commit", partial(db.execute, "COMMIT"))
            if db.total_changes - changes >= CHECKPOINT_CHANGES:
                changes = db.total_changes
                frames += log.stat().st_size // FRAME
                timed("checkpoint", partial(db.execute, "PRAGMA wal_checkpoint(TRUNCATE)"))
            if (at + group) // WINDOW > at // WINDOW:
                windows.append({step: s / WINDOW * 1e6 for step, s in spent.items()})
                spent = dict.fromkeys(spent, 0.0)
        frames += log.stat().st_size // FRAME
        seen: list[str] = []
        db.set_trace_callback(seen.append)
        record(db, [answer(answers)])
        statements = len(seen)
    cpu = {step: round(statistics.median(one[step] for one in windows[1:])) for step in ("record", "commit")}
    cpu["checkpoint"] = round(statistics.mean(one["checkpoint"] for one in windows))  # one in several windows
    return {
        "at_once": group, "cpu_us": cpu | {"all": sum(cpu.values())}, "pages": round(frames / answers, 1),
        "statements": statements, "bytes": file.stat().st_size // answers,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=6000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    gc.disable()
    found = []
    CACHE.mkdir(parents=True, exist_ok=True)
    for group in GROUPS:
        with tempfile.TemporaryDirectory(dir=CACHE) as name:  # on a disk, not in memory
            found.append(measured(group, asked.answers, Path(name)))
        print(found[-1], flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(circumstances() | {"groups": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
