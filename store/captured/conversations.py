"""Which conversation a completion is a turn of: lists show a conversation by its newest turn.

A turn belongs to the conversation of the reply above it. That is found by its thread, which survives what clients
change, among those of its key. So another key's turn, whomever it names, does not come into a conversation. A prompt
without any reply begins a conversation. Where the reply above is not here (an agent that shortens its history), the
session's newest main turn is gone on with. Not here: the tree of messages (`tree`).
"""

from __future__ import annotations

import sqlite3
from typing import Final

from store.records import NewCompletion

# What is said the same in thousands of conversations must not cost a look at each: the newest few, this session first.
_CONTINUED_ANSWER: Final = """SELECT coalesce(w.conversation, w.seq) AS conversation FROM (
    SELECT c.seq, c.conversation, c.session, c.user, c.key FROM completions c
    WHERE c.thread = :above ORDER BY c.seq DESC LIMIT 50) w
WHERE (w.user IS NULL OR :user IS NULL OR w.user = :user) AND (w.key IS NULL OR w.key = :key)
ORDER BY iif(w.session = :session, 1, 0) DESC, w.seq DESC LIMIT 1"""
_SESSION: Final = """SELECT coalesce(c.conversation, c.seq) AS conversation FROM completions c
WHERE c.session = :session AND +c.turn = 'main' AND (c.user IS NULL OR :user IS NULL OR +c.user = :user)
AND (+c.key IS NULL OR +c.key = :key) ORDER BY c.seq DESC LIMIT 1"""


def of(db: sqlite3.Connection, new: NewCompletion) -> int | None:
    """The conversation that it goes on with; None: it begins one."""
    if new.above is None:
        return None
    requester = {"above": new.above, "session": new.session, "user": new.user, "key": new.key}
    row = db.execute(_CONTINUED_ANSWER, requester).fetchone()
    if row is None and new.session is not None and new.turn == "main":
        row = db.execute(_SESSION, requester).fetchone()
    return None if row is None else int(row["conversation"])
