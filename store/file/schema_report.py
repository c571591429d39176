"""How large a database is, and of which schema: numbers only, for a bug report. Read while it is in use.

An encrypted one says no more than its error: nobody is asked for its key to report a bug.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from store.errors import StoreError
from store.file import driver, schema


def outline(database: Path) -> dict[str, Any]:
    """`error` where it cannot be read, by the kind of it alone."""
    if not database.is_file():
        return {"error": "there is none"}
    try:
        with closing(driver.connect(database, None, read_only=True)) as db:
            schema.check(db, database)
            (version,) = db.execute("PRAGMA user_version").fetchone()
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
            plain = [name for name in names if name.isidentifier()]
            counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in plain}  # noqa: S608
    except driver.errors(StoreError) as error:
        return {"error": type(error).__name__}
    return {"schema": version, "bytes": database.stat().st_size, "rows": counts}
