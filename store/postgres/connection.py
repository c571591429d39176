"""The calls of sqlite3.Connection that the store uses, on a connection to PostgreSQL.

Owns one transaction at a time: an operation is written once, as for SQLite, and runs on either. A commit whose answer
got lost is asked for by its number, so that nobody hears "not stored" of what was. Not here: who writes when (writer).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from store.postgres import server
from store.postgres.translation import translate

WRITERS: Final = 7_205_759_403  # the advisory lock that each writing transaction takes: one at a time, as with SQLite
_BEGIN: Final = f"BEGIN; SELECT pg_advisory_xact_lock({WRITERS}), pg_current_xact_id()::text"
_OUTCOME: Final = "SELECT pg_xact_status($1::text::xid8) AS outcome"
RETRY_S: Final = 1.0
OUTCOME_S: Final = 2.0  # that a commit's outcome is asked for
_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")


class PostgresResult:
    """The rows of a statement, all of them, as a cursor of SQLite gives them."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


class PostgresConnection:
    """Takes the name and the form of sqlite3.Connection's calls. Raises psycopg.Error."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = server.connect(url)
        self._number: str | None = None  # of the transaction under way
        self._retry_at = 0.0  # monotonic: before that nobody waits for a connection once more
        self._start_s: float | None = None  # monotonic, of the transaction under way
        self.total_changes = 0  # rows
        self.commit_s = 0.0  # monotonic, when the newest commit succeeded

    @property
    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)

    def __enter__(self) -> PostgresConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the transaction, or undo it, as SQLite's connection does."""
        if self.in_transaction:
            self.execute("COMMIT" if kind is None else "ROLLBACK")

    def _reconnect(self) -> None:
        self._connection.close()
        self._connection = server.connect(self._url)

    def _begin(self) -> None:
        """A transaction, alone among all that write. One message to the server and back."""
        if self._connection.closed:
            if time.monotonic() < self._retry_at:
                raise psycopg.OperationalError("it could not be reached a moment ago")
            try:
                self._reconnect()
            except psycopg.Error:
                self._retry_at = time.monotonic() + RETRY_S
                raise
        self._start_s = time.monotonic()
        try:
            cursor = self._connection.execute(_BEGIN)
        except psycopg.Error:  # the lock came too late, and the transaction has begun
            self._roll_back()
            raise
        cursor.nextset()
        row = cursor.fetchone()
        assert row is not None  # the lock, and the number
        self._number = str(row[1])

    def _roll_back(self) -> None:
        """No transaction is left open, or no connection."""
        try:
            if self.in_transaction:
                self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.close()

    def _commit(self) -> None:
        """Returns once it is on the server's disk. Raises psycopg.Error where it is not, or where nobody can tell."""
        number, self._number = self._number, None
        self._start_s = time.monotonic()
        try:
            self._connection.execute("COMMIT")
        except psycopg.Error as error:
            if number is None or not server.is_away(error):
                raise
            outcome = self._outcome(number)
            if outcome is None:
                raise server.OutcomeUnknown(str(error)) from error
            if outcome != "committed":
                raise
        self.commit_s = time.monotonic()

    def _outcome(self, number: str) -> str | None:
        """Tell what became of a transaction; None where the server cannot be asked."""
        deadline = time.monotonic() + OUTCOME_S
        while time.monotonic() < deadline:
            try:
                self._reconnect()
                row = self._connection.execute(_OUTCOME, (number,)).fetchone()
            except psycopg.Error:
                time.sleep(OUTCOME_S / 20)
                continue
            if row is None or row["outcome"] != "in progress":
                return None if row is None else str(row["outcome"])
            time.sleep(OUTCOME_S / 100)
        return None

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> PostgresResult:
        if sql in ("BEGIN IMMEDIATE", "COMMIT"):
            self._begin() if sql.startswith("BEGIN") else self._commit()
            return PostgresResult([], -1)
        statement = translate(sql)
        cursor = self._connection.cursor()
        values = statement.values(parameters)
        cursor.execute(statement.text_for(values), values, binary=True)
        rows = cursor.fetchall() if cursor.description is not None else []
        if sql.lstrip().startswith(_CHANGES):
            self.total_changes += max(0, cursor.rowcount)
        return PostgresResult(rows, cursor.rowcount)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> PostgresResult:
        """All in one message to the server."""
        statement = translate(sql)
        cursor = self._connection.cursor()
        rows = [statement.values(each) for each in parameters]
        if not rows:
            return PostgresResult([], 0)
        assert not statement.asked_for_null, f"each row would have a text of its own: {sql}"
        cursor.executemany(statement.text, rows)
        self.total_changes += max(0, cursor.rowcount)
        return PostgresResult([], cursor.rowcount)

    def end_hung(self, seconds: float) -> bool:
        """Break the connection, from another thread, where a transaction takes longer; whether it was."""
        start_s = self._start_s
        if start_s is None or time.monotonic() - start_s < seconds or not self.in_transaction:
            return False
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._connection.fileno())) as link,
        ):
            link.shutdown(socket.SHUT_RDWR)
        self._start_s = None
        return True

    def run_script(self, script: str) -> None:
        """Statements without parameters, as a file has them."""
        self._connection.execute(script)

    def close(self) -> None:
        self._connection.close()
