"""Summaries of evaluations in a home: written, listed for the page, forgotten with what they are of.

Owns the files HOME/checks/results/*.json. Not here: what is in a summary (summary), answers (answers).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.checks.answers import FOLDER, write_whole

RESULTS: Final = "results"
MOST_KEPT: Final = 50


def keep(home: Path, summary: dict[str, Any]) -> Path:
    """Write it beside the others; the oldest beyond MOST_KEPT go. Raises OSError."""
    folder = home / FOLDER / RESULTS
    for each in (folder.parent, folder):
        each.mkdir(exist_ok=True, mode=0o700)
    path = folder / f"{time.time_ns():020d}.json"
    write_whole(path, orjson.dumps(summary))
    for old in sorted(folder.glob("[0-9]*.json"))[:-MOST_KEPT]:
        old.unlink(missing_ok=True)
    return path


def recent(home: Path, most: int) -> list[dict[str, Any]]:
    """Newest first; a file that cannot be read is left out."""
    summaries = []
    for path in sorted((home / FOLDER / RESULTS).glob("[0-9]*.json"), reverse=True):
        with contextlib.suppress(OSError, orjson.JSONDecodeError):
            summaries.append(orjson.loads(path.read_bytes()))
        if len(summaries) == most:
            break
    return summaries


def forget(home: Path, completions: Collection[str]) -> None:
    """Delete summaries that name one of these completions: a slice may tell a word of them. Raises OSError."""
    names = set(completions)
    for path in (home / FOLDER / RESULTS).glob("[0-9]*.json"):
        try:
            rows = orjson.loads(path.read_bytes())["rows"]
            is_named = any(row["completion"] in names for row in rows)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            is_named = True  # nobody can tell
        if is_named:
            path.unlink(missing_ok=True)
