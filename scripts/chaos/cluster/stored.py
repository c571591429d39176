"""The database in the end, against the answers and ratings that clients had, and against the runs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.chaos.cluster.clients import VALUES, Ledger
from scripts.harness.postgres import PostgresServer

RUN_SAMPLES = """SELECT s.rating_id, u.id FROM rlproxy.run_samples s
JOIN rlproxy.runs u ON u.id = s.run_id WHERE u.status = 'done'"""
MOVES = "SELECT detail FROM rlproxy.audit WHERE act = 'point' ORDER BY seq"
UNTRAINABLE = """SELECT r.completion_id, c.status, c.untrainable FROM rlproxy.ratings r
JOIN rlproxy.completions c ON c.id = r.completion_id
WHERE r.live = 1 AND (c.status <> 'done' OR c.reply_hash IS NULL OR c.version IS NULL OR c.untrainable IS NOT NULL)"""


def wrong(server: PostgresServer, database: str, ledger: Ledger) -> list[str]:
    """Answers and ratings that are lost, doubled, changed or invented."""
    rows = server.execute("SELECT id, status, version FROM rlproxy.completions", database)
    states = {id: (status, version) for id, status, version in rows}
    problems = []
    for answer in ledger.answers:
        status, version = states.get(answer.id, (None, None))
        if status is None:
            problems.append(f"{answer.id} was answered and is not stored")
        elif status != "done":
            problems.append(f"{answer.id} was answered and is {status}")
        elif (version or 0) != answer.version:
            problems.append(f"{answer.id} was answered by v{answer.version} and is stored as of v{version}")
    if (doubled := len(rows) - len(states)) or len(ledger.answers) != len({answer.id for answer in ledger.answers}):
        problems.append(f"{doubled} ids are stored twice")
    whole_answers = sum(status == "done" for status, _ in states.values())
    if whole_answers > ledger.requests:
        problems.append(f"{whole_answers} answers are stored, and {ledger.requests} were asked for")
    return problems + _wrong_ratings(server, database, ledger)


def _wrong_ratings(server: PostgresServer, database: str, ledger: Ledger) -> list[str]:
    count, values = Counter[str](), {}
    for id, value in server.execute("SELECT completion_id, value FROM rlproxy.ratings", database):
        count[id] += 1
        values[id] = value
    problems = [f"{id} has {number} ratings" for id, number in count.items() if number > 1]
    problems += [f"the rating of {id} is lost" for id in ledger.ratings if id not in values]
    problems += [
        f"{id} is rated {values[id]}"
        for id, rating in ledger.ratings.items()
        if values.get(id) not in (None, VALUES[rating])
    ]
    return problems + [
        f"{id} is rated by nobody" for id in values if id not in ledger.ratings and id not in ledger.unsure
    ]


def wrong_runs(server: PostgresServer, database: str, journal: Path, newest: int) -> list[str]:
    """Runs that hang or are doubled, ratings that trained twice or can train in none, and versions that gave way.
    `newest`: the last run before the relays were stopped; a later one goes on when they start again."""
    uses = Counter(rating for rating, _ in server.execute(RUN_SAMPLES, database))
    problems = [f"the rating {rating} trained {number} times" for rating, number in uses.items() if number > 1]
    problems += [
        f"the rating of {id} can train in no run: {reason or status}"
        for id, status, reason in server.execute(UNTRAINABLE, database)
    ]
    versions = Counter(run for (run,) in server.execute("SELECT run_id FROM rlproxy.adapters", database))
    problems += [f"run {run} made {number} versions" for run, number in versions.items() if number > 1]
    for run, status in server.execute("SELECT id, status FROM rlproxy.runs", database):
        if status in ("claimed", "running") and run <= newest:
            problems.append(f"run {run} is {status} in the end")
        if status == "done" and run not in versions:
            problems.append(f"run {run} is done and made no version")
    for (detail,) in server.execute(MOVES, database):
        move = json.loads(detail)
        if move["live"] < move["was"]:
            problems.append(f"v{move['was']} gave way to v{move['live']}: {move['reason']}")
    return problems + doubled_runs(journal)


def doubled_runs(journal: Path) -> list[str]:
    """Trainers that were at work at the same time."""
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for line in journal.read_text().splitlines() if journal.exists() else []:
        entry = json.loads(line)
        times[(entry["run"], entry["process"])].append(entry["time"])
    lives = sorted((min(each), max(each), run) for (run, _), each in times.items())
    problems = []
    for (_, ended, run), (began, _, next_run) in pairwise(lives):
        if began < ended:
            problems.append(f"runs {run} and {next_run} trained at the same time, for {ended - began:.1f} s")
    return problems


def learned(server: PostgresServer, database: str) -> dict[str, Any]:
    """Runs by status, and how many ratings trained or wait."""
    statuses = dict(server.execute("SELECT status, count(*) FROM rlproxy.runs GROUP BY status", database))
    trained = len(server.execute(RUN_SAMPLES, database))
    ((live,),) = server.execute("SELECT count(*) FROM rlproxy.ratings WHERE live = 1", database)
    return {"runs": statuses, "trained_ratings": trained, "fresh_ratings": live - trained}
