"""Deliveries of spooled answers: each is stored once, whatever of it the database has already.

Its rows may be there, begun before the database went away. They may even be whole: the connection broke while the
commit was on its way. Not here: the spool itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

import orjson

from store.captured import completions
from store.file.tombstones import hash_of
from store.forgetting.forget import FORGOTTEN_OF
from store.postgres.spool_lines import Answer

_EXISTING: Final = "SELECT status, error FROM completions WHERE id = ?"
_UNLIST: Final = "DELETE FROM listed WHERE seq = (SELECT c.seq FROM completions c WHERE c.id = ?)"
_UNSEARCH: Final = "DELETE FROM search WHERE rowid = (SELECT c.seq FROM completions c WHERE c.id = ?)"
_REOPEN: Final = "UPDATE completions SET status = 'pending', error = NULL WHERE id = ?"


def deliver(db: sqlite3.Connection, answers: Iterable[Answer]) -> None:
    """Store what of these is not there; one that was forgotten meanwhile does not come back."""
    for new, end in answers:
        if db.execute(FORGOTTEN_OF, (orjson.dumps([hash_of(new.id)]).decode(),)).fetchone() is not None:
            continue
        row = db.execute(_EXISTING, (new.id,)).fetchone()
        if row is None:
            completions.begin(db, [new])
        elif row["status"] == "error" and row["error"] == completions.STOPPED:
            # It was taken for lost while this relay could not reach the database.
            db.execute(_UNLIST, (new.id,))
            db.execute(_UNSEARCH, (new.id,))
            db.execute(_REOPEN, (new.id,))
        elif row["status"] != "pending":
            continue
        completions.finish(db, [end])
