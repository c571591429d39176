"""Completions that come from an export: each once, by its id; and their ratings, each once by its own.

Owns what of them is new. What a line of an export means is the proxy's (`importing`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from store.captured import completions
from store.learning import ratings
from store.records import FinishedCompletion, NewCompletion, Rating


class ImportedCompletions(NamedTuple):
    new: NewCompletion
    end: FinishedCompletion
    ratings: tuple[Rating, ...]


class ImportCounts(NamedTuple):
    stored: int
    existing: int  # completions that were here before
    ratings: int


def take(db: sqlite3.Connection, rows: Iterable[ImportedCompletions]) -> ImportCounts:
    stored = existing = rated = 0
    for row in rows:
        if db.execute("SELECT 1 FROM completions WHERE id = ?", (row.new.id,)).fetchone() is None:
            completions.begin(db, [row.new])
            completions.finish(db, [row.end])
            stored += 1
        else:
            existing += 1
        rated += sum(_rate(db, rating) for rating in reversed(row.ratings))  # an export has the newest first
    return ImportCounts(stored, existing, rated)


def _rate(db: sqlite3.Connection, r: Rating) -> bool:
    """False where it is here, or was; or where its rater has said something else of that completion here."""
    if db.execute("SELECT 1 FROM ratings WHERE id = ?", (r.id,)).fetchone() is not None:
        return False
    if r.human:
        ratings.take_back_judged(db, r.completion_id)
    live = ratings.live_in(db, r.completion_id, r.rater)
    if live is not None:
        if ratings.judgement(live) == ratings.judgement(r):
            ratings.unhook(db, live.id)
        return False
    ratings.insert(db, r, id=r.id, created_at=r.created_at)
    return True
