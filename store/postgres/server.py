"""The server that `store.url` names: how it is connected to, and what its errors mean.

Owns the options of every connection: what was acknowledged is on the server's disk, and one that hangs is given up.
Not here: what is said on a connection (connection), who shares it (the pool of reader).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from store.errors import POSTGRES_FULL, StoreAway, StoreError
from store.postgres import values

SCHEMA: Final = "rlproxy"  # ours in the database, beside whatever else there is
CONNECT_S: Final = 3
LOCK_S: Final = 10  # for the one lock that all writers take: longer than the longest transaction of another relay
IDLE_S: Final = 8  # after which the server ends a transaction that nobody goes on with, as of a relay that is frozen
_OPTIONS: Final = {
    "application_name": "rlproxy",
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "client_encoding": "UTF8",
}
SESSION: Final = f"""SET search_path = {SCHEMA}, pg_catalog; SET synchronous_commit = on;
-- The server also gives up a connection that nobody is behind: a relay that is cut off would keep the learner's lock.
SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
SET tcp_user_timeout = '10s';
SET lock_timeout = '{LOCK_S}s'; SET idle_in_transaction_session_timeout = '{IDLE_S}s'; SET timezone = 'UTC'"""


class OutcomeUnknown(psycopg.OperationalError):
    """The connection broke during a commit, and the server cannot be asked what became of it."""


def address(url: str) -> str:
    """A connection string with our options. Raises StoreError where it is not one of PostgreSQL."""
    try:
        options: dict[str, Any] = {**_OPTIONS, **conninfo_to_dict(url)}
        return make_conninfo(**options)
    except psycopg.ProgrammingError:
        raise StoreError(
            'store.url is not an address of PostgreSQL, as "postgresql://user:password@host:5432/database"; nothing '
            "was opened."
        ) from None


def place_of(url: str) -> str:
    """The address without its password, for messages and logs."""
    parts = urlsplit(url)
    place = parts.hostname or "the local socket"
    return f"{place}{f':{parts.port}' if parts.port else ''}{parts.path}"


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection in autocommit mode that knows our schema and values. Raises psycopg.Error."""
    connection: psycopg.Connection[Any] = psycopg.connect(
        address(url), autocommit=True, cursor_factory=psycopg.RawCursor, row_factory=values.make_rows
    )
    try:
        values.adapt(connection)
        connection.execute(SESSION)
    except BaseException:
        connection.close()
        raise
    return connection


def is_away(error: BaseException) -> bool:
    """Tell whether this error is of the connection or of a server that stops, not of what was asked."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate or ""
    # No connection; stopping; no memory; a failed disk; idle too long; no lock; an aborted transaction. None of these
    # says anything of what was asked. A full disk is StoreFull.
    if (state[:2] in ("08", "53", "57", "58") and state != POSTGRES_FULL) or state in ("25P03", "55P03", "25P02"):
        return state != "57014"  # a statement that was cancelled
    return not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def not_opened(url: str, error: BaseException) -> StoreError:
    """The error of a start: the settings may be wrong, or the server is not there yet."""
    reason = " ".join(str(error).split())[:300]
    text = f"The database at {place_of(url)} cannot be opened ({reason})."
    kind = StoreAway if is_away(error) else StoreError
    return kind(f"{text} Nothing was changed: check store.url and the server.")


def away(url: str, error: BaseException) -> StoreAway:
    reason = " ".join(str(error).split())[:300]
    is_known = not isinstance(error, OutcomeUnknown)
    outcome = "this was not stored" if is_known else "whether this was stored is not known"
    return StoreAway(f"The database at {place_of(url)} cannot be reached ({reason}); {outcome}. Try again.")
