"""Which conversation a completion is a turn of: lists show a conversation by its newest turn.

A turn belongs to the conversation of the reply above it, found by its thread, which survives what clients change. A
prompt without any reply begins a conversation. Where the reply above is not here (an agent that shortens its history),
the session's newest main turn is gone on with. Not here: the tree of messages (`tree`).
"""

from __future__ import annotations

import sqlite3
from typing import Final

from store.records import NewCompletion

_ABOVE: Final = """SELECT coalesce(c.conversation, c.seq) AS conversation FROM completions c
WHERE c.thread = :above AND (c.user IS NULL OR :user IS NULL OR +c.user = :user)
ORDER BY coalesce(c.session = :session, 0) DESC, c.seq DESC LIMIT 1"""
_SESSION: Final = """SELECT coalesce(c.conversation, c.seq) AS conversation FROM completions c
WHERE c.session = :session AND +c.turn = 'main' AND (c.user IS NULL OR :user IS NULL OR +c.user = :user)
ORDER BY c.seq DESC LIMIT 1"""
# For completions of before: the nearest reply in the prompt, as it was said, that a completion here has given.
_WALK: Final = """WITH RECURSIVE path (hash, step) AS (
    SELECT :leaf, 0 UNION ALL SELECT m.parent, step + 1 FROM path JOIN messages m ON m.hash = path.hash
    WHERE m.parent IS NOT NULL AND m.role <> 'assistant')
SELECT m.role, m.hash FROM path JOIN messages m ON m.hash = path.hash ORDER BY step DESC LIMIT 1"""
_REPLY: Final = """SELECT coalesce(c.conversation, c.seq) AS conversation FROM completions c
WHERE c.reply_hash = :reply AND c.seq < :seq AND (c.user IS NULL OR :user IS NULL OR +c.user = :user)
ORDER BY coalesce(c.session = :session, 0) DESC, c.seq DESC LIMIT 1"""


def of(db: sqlite3.Connection, new: NewCompletion) -> int | None:
    """The conversation that it goes on with; None: it begins one."""
    if new.above is None:
        return None
    who = {"above": new.above, "session": new.session, "user": new.user}
    found = db.execute(_ABOVE, who).fetchone()
    if found is None and new.session is not None and new.turn == "main":
        found = db.execute(_SESSION, who).fetchone()
    return None if found is None else int(found["conversation"])


def fill(db: sqlite3.Connection) -> None:
    """Once, for completions of before: oldest first, so that each finds those above it."""
    rows = db.execute("SELECT seq, prompt_hash, session, user FROM completions ORDER BY seq").fetchall()
    for row in rows:
        above = db.execute(_WALK, {"leaf": row["prompt_hash"]}).fetchone()
        if above is None or above["role"] != "assistant":
            continue
        who = {"reply": above["hash"], "seq": row["seq"], "session": row["session"], "user": row["user"]}
        found = db.execute(_REPLY, who).fetchone()
        if found is not None:
            db.execute("UPDATE completions SET conversation = ? WHERE seq = ?", (found["conversation"], row["seq"]))
    db.execute(
        """UPDATE listed SET conversation = (
        SELECT coalesce(c.conversation, c.seq) FROM completions c WHERE c.seq = listed.seq)"""
    )
