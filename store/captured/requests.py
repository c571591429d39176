"""A request's members beside its messages, kept once where that is much: an agent sends the same tools with every turn.

Owns how much that is, and the name by which a completion has it. A request goes with its last completion (a trigger of
the schema). Not here: the messages (`tree`).
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Final

from store.captured.tree import SIZE

LEAST: Final = 512  # bytes; less stays with its completion


def add(db: sqlite3.Connection, request: bytes) -> tuple[bytes | None, bytes]:
    """The name of what is kept apart, and what stays with the completion."""
    if len(request) < LEAST:
        return None, request
    name = hashlib.blake2b(request, digest_size=SIZE).digest()
    db.execute("INSERT INTO requests VALUES (?, ?) ON CONFLICT DO NOTHING", (name, request))
    return name, b""
