"""New databases of this process are copies of one: the migrations run once, and not for each of thousands of tests.

Owns that copy. A database that has tables, an encrypted one, and one of another schema are made by the product alone.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from store.file import schema


@contextlib.contextmanager
def copied() -> Iterator[None]:
    migrate, migrations, lock = schema.migrate, schema.MIGRATIONS, threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        model = sqlite3.connect(Path(folder) / "model.db", check_same_thread=False)
        for pragma in schema.PRAGMAS:
            model.execute(pragma)
        migrate(model)

        def copy(db: sqlite3.Connection, last: int | None = None) -> None:
            is_new = last is None and type(db) is sqlite3.Connection and migrations == schema.MIGRATIONS
            if not is_new or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                migrate(db, last)
                return
            with lock:
                model.backup(db)

        schema.migrate = copy
        try:
            yield
        finally:
            schema.migrate = migrate
            model.close()
