"""Check that a database holds, after whatever happened, everything that people had been told by a moment."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from scripts.chaos.people import Ledger, Step
from store.captured.completions import recover
from store.copies import backup
from store.errors import StoreError
from store.file import integrity
from store.file.schema import NAME, begin, open_database

END = 1e300  # later than all that happened, and before what never did


def wrong(home: Path, ledger: Ledger, moment: float = END) -> list[str]:
    """Checked and opened as `rlproxy serve` opens it after a kill; what is missing, doubled or damaged."""
    try:
        with closing(open_database(home / NAME, backup.before_migration)) as db:
            integrity.check(db, home / NAME)
            begin(db, recover)
            return [
                *_damaged(db),
                *_answers(db, ledger, moment),
                *_ratings(db, ledger, moment),
                *_rewards(db, ledger, moment),
            ]
    except (StoreError, sqlite3.Error) as error:
        return [str(error)]


def _damaged(db: sqlite3.Connection) -> list[str]:
    problems = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    problems += [f"foreign key of {tuple(row)}" for row in db.execute("PRAGMA foreign_key_check")]
    pending = db.execute("SELECT count(*) FROM completions WHERE status = 'pending'").fetchone()[0]
    return problems + ([f"{pending} completions are still pending"] if pending else [])


def _answers(db: sqlite3.Connection, ledger: Ledger, moment: float) -> list[str]:
    rows = {row["id"]: row for row in db.execute("SELECT id, status, text FROM completions")}
    problems = []
    for answer in ledger.answers:
        if answer.whole_at > moment:
            continue
        row = rows.get(answer.id)
        if row is None:
            problems.append(f"{answer.id} was had whole and is not stored")
        elif (row["status"], row["text"]) != ("done", answer.text):
            problems.append(f"{answer.id} was had whole and is stored as {row['status']}: {row['text']!r}")
    doubles = "SELECT text, count(*) FROM completions WHERE status = 'done' GROUP BY text HAVING count(*) > 1"
    return problems + [f"stored {n} times: {text!r}" for text, n in db.execute(doubles)]


def _ratings(db: sqlite3.Connection, ledger: Ledger, moment: float) -> list[str]:
    query = "SELECT id, completion_id, rater, value FROM ratings WHERE live = 1"
    live = {(row["completion_id"], row["rater"]): row for row in db.execute(query)}
    event_by_rating = {
        row["id"]: row["source_event_id"] for row in db.execute("SELECT id, source_event_id FROM ratings")
    }
    problems = []
    for (completion, rater), steps in ledger.steps.items():
        row = live.get((completion, rater))
        value = None if row is None else row["value"]
        if value not in (possible_values := possible(steps, moment)):
            problems.append(f"the rating of {completion} by {rater} is {value}, not one of {possible_values}")
        problems += [
            f"{step.rating} was acknowledged for {step.event} and is not stored so"
            for step in steps
            if step.acknowledged_at <= moment
            and step.value is not None
            and event_by_rating.get(step.rating or "") != step.event
        ]
    sent = {step.event for steps in ledger.steps.values() for step in steps if step.value is not None}
    events = list(event_by_rating.values())
    problems += [f"{len(events)} ratings of {len(set(events))} acts"] if len(events) != len(set(events)) else []
    return problems + [f"nobody gave {event}" for event in set(events) - sent]


def _rewards(db: sqlite3.Connection, ledger: Ledger, moment: float) -> list[str]:
    rows = {row["id"]: row for row in db.execute("SELECT id, reward, ended_at FROM episodes")}
    problems = [
        f"the episode {id} was opened and is not stored"
        for id, opened_at in ledger.opened.items()
        if opened_at <= moment and id not in rows
    ]
    for reward in ledger.rewards.values():
        row = rows.get(reward.episode)
        value = None if row is None else row["reward"]
        possible_values: set[float | None] = {None}
        if reward.acknowledged_at <= moment:
            possible_values = {reward.value}
        elif reward.sent_at <= moment:
            possible_values = {None, reward.value}
        if value not in possible_values:
            problems.append(f"the reward of {reward.episode} is {value}, not one of {possible_values}")
        elif row is not None and (value is None) != (row["ended_at"] is None):
            problems.append(f"{reward.episode} has the reward {value} and ended at {row['ended_at']}")
    rewarded = {id for id, row in rows.items() if row["reward"] is not None}
    return problems + [f"nobody rewarded {id}" for id in sorted(rewarded - ledger.rewards.keys())]


def possible(steps: list[Step], moment: float) -> set[float | None]:
    """The values that may be live: the last that was acknowledged by then, or the one that had been sent after it."""
    confirmed = [i for i, step in enumerate(steps) if step.acknowledged_at <= moment]
    last = confirmed[-1] if confirmed else -1
    possible_values = {steps[last].value if last >= 0 else None}
    if last + 1 < len(steps) and steps[last + 1].sent_at <= moment:
        possible_values.add(steps[last + 1].value)
    return possible_values
