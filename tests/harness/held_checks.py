"""Checks of a database that wait until a test lets them go."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from store.file import integrity

PAGE = 4096  # bytes of a page of a database
LONG = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 30000) SELECT count(*) FROM c"


class Held:
    """Checks wait until they are let go, or interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, quick = threading.Event(), integrity.quick

        def held(db: sqlite3.Connection) -> str:
            while not self.go.wait(0.01):
                db.execute(LONG).fetchone()
            return quick(db)

        monkeypatch.setattr(integrity, "FIRST_S", 0.0)
        monkeypatch.setattr(integrity, "quick", held)
