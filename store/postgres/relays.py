"""Relays of one database: which there are, and what becomes of the requests of one that is gone.

Owns the name of this relay, which stays with its home folder, and the end of rows that nobody will finish. Not here:
which relay learns (following).
"""

from __future__ import annotations

import secrets
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from store.captured import completions, items

FILE: Final = "rlproxy.relay"  # in the home
GONE_S: Final = 600.0  # a relay that was not seen for so long is not coming back to its requests
CLOCK: Final = "extract(epoch FROM clock_timestamp())::float8"  # the database's, since those of relays may differ
NOTE: Final = f"""INSERT INTO relays VALUES (?, ?, {CLOCK})
ON CONFLICT (id) DO UPDATE SET host = excluded.host, seen_at = excluded.seen_at"""  # noqa: S608  ours
_ABANDONED: Final = f"""UPDATE completions AS c SET status = 'error', error = ?, finished_at = ?
WHERE c.status = 'pending' AND NOT {items.OPEN} AND NOT EXISTS (
    SELECT 1 FROM relay_rows o JOIN relays a ON a.id = o.relay
    WHERE o.completion_id = c.id AND a.id <> ? AND a.seen_at > {CLOCK} - {GONE_S})"""  # noqa: S608  ours
LATELY_S: Final = 30.0  # a relay that was seen since is at work
_HOSTS: Final = f"""SELECT a.host, EXISTS (SELECT 1 FROM meta m WHERE m.key = 'learner'
    AND m.value = to_json(a.id)::text) AS learns FROM relays a WHERE a.seen_at > {CLOCK} - {LATELY_S}
ORDER BY a.host"""  # noqa: S608  ours
_RESIGN: Final = "DELETE FROM meta WHERE key = 'learner' AND value = ?"
_SIGN_OFF: Final = "UPDATE relays SET seen_at = 0 WHERE id = ?"
_SETTLED: Final = """DELETE FROM relay_rows WHERE NOT EXISTS (
    SELECT 1 FROM completions c WHERE c.id = relay_rows.completion_id AND c.status = 'pending')"""


def name_of(home: Path) -> str:
    """The name of the relay of this home, made at its first start. Blocking; raises OSError."""
    file = home / FILE
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(8))
    return file.read_text(encoding="ascii").strip()


def host() -> str:
    return socket.gethostname()


def note_seen(db: Any, relay: str) -> None:
    """This relay is there."""
    db.execute(NOTE, (relay, host()))


def hosts(db: Any) -> list[str]:
    """Machines of relays that were seen in the last half minute; of the one that learns it is said."""
    rows = db.execute(_HOSTS).fetchall()
    return [f"{row['host']} (trains)" if row["learns"] else row["host"] for row in rows]


def sign_off(db: sqlite3.Connection, relay: str) -> None:
    """This relay has stopped, and its trainer too: nobody has to wait until it was not seen for a while."""
    db.execute(_RESIGN, (f'"{relay}"',))
    db.execute(_SIGN_OFF, (relay,))


def end_abandoned(db: sqlite3.Connection, relay: str) -> int:
    """End what no relay works on any more: rows of this one, which has just started, and of those that are gone."""
    count = db.execute(_ABANDONED, (completions.STOPPED, time.time(), relay)).rowcount
    db.execute(_SETTLED)
    return count
