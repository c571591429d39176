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
_NEWEST_OF: Final = """SELECT coalesce(w.conversation, w.seq) AS conversation FROM (
    SELECT {columns} FROM completions c WHERE {where} ORDER BY c.seq DESC LIMIT 50) w
WHERE (w.user IS NULL OR :user IS NULL OR w.user = :user) AND {also}
ORDER BY coalesce(w.session = :session, 0) DESC, w.seq DESC LIMIT 1"""
_COLUMNS: Final = "c.seq, c.conversation, c.session, c.user"
_CONTINUED_ANSWER: Final = _NEWEST_OF.format(
    columns=f"{_COLUMNS}, c.key", where="c.thread = :above", also="(w.key IS NULL OR w.key = :key)"
)
_SESSION: Final = """SELECT coalesce(c.conversation, c.seq) AS conversation FROM completions c
WHERE c.session = :session AND +c.turn = 'main' AND (c.user IS NULL OR :user IS NULL OR +c.user = :user)
AND (+c.key IS NULL OR +c.key = :key) ORDER BY c.seq DESC LIMIT 1"""
# For completions of before: the nearest reply in the prompt, as it was said, that a completion here has given.
_WALK: Final = """WITH RECURSIVE path (hash, step) AS (
    SELECT :leaf, 0 UNION ALL SELECT m.parent, step + 1 FROM path JOIN messages m ON m.hash = path.hash
    WHERE m.parent IS NOT NULL AND m.role <> 'assistant')
SELECT m.role, m.hash FROM path JOIN messages m ON m.hash = path.hash ORDER BY step DESC LIMIT 1"""
_REPLY: Final = _NEWEST_OF.format(columns=_COLUMNS, where="c.reply_hash = :reply AND c.seq < :seq", also="1")


def of(db: sqlite3.Connection, new: NewCompletion) -> int | None:
    """The conversation that it goes on with; None: it begins one."""
    if new.above is None:
        return None
    requester = {"above": new.above, "session": new.session, "user": new.user, "key": new.key}
    row = db.execute(_CONTINUED_ANSWER, requester).fetchone()
    if row is None and new.session is not None and new.turn == "main":
        row = db.execute(_SESSION, requester).fetchone()
    return None if row is None else int(row["conversation"])


def fill(db: sqlite3.Connection) -> None:
    """Once, for completions of before: oldest first, so that each finds those above it."""
    rows = db.execute("SELECT seq, prompt_hash, session, user FROM completions ORDER BY seq").fetchall()
    for row in rows:
        parent = db.execute(_WALK, {"leaf": row["prompt_hash"]}).fetchone()
        if parent is None or parent["role"] != "assistant":
            continue
        lookup = {"reply": parent["hash"], "seq": row["seq"], "session": row["session"], "user": row["user"]}
        reply_row = db.execute(_REPLY, lookup).fetchone()
        if reply_row is not None:
            db.execute("UPDATE completions SET conversation = ? WHERE seq = ?", (reply_row["conversation"], row["seq"]))
    db.execute(
        """UPDATE listed SET conversation = (
        SELECT coalesce(c.conversation, c.seq) FROM completions c WHERE c.seq = listed.seq)"""
    )
