"""How large a database is, and of which schema: numbers only, for a bug report. Read while it is in use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote


def outline(database: Path) -> dict[str, Any]:
    """`error` where it cannot be read, by the kind of it alone."""
    if not database.is_file():
        return {"error": "there is none"}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
            plain = [name for name in names if name.isidentifier()]
            counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in plain}  # noqa: S608
    except sqlite3.Error as error:
        return {"error": type(error).__name__}
    return {"schema": version, "bytes": database.stat().st_size, "rows": counts}
