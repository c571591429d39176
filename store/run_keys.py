"""One random key for each run, which opens the samples in its folder. Kept in the encrypted database and nowhere else.

Not here: what is encrypted with it (trainer.sealed), how the trainer gets it (trainer.launch).
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import Final

from store import ledger

KEY_BYTES: Final = 32


def of(db: sqlite3.Connection, run_id: int) -> bytes:
    """The run's key, made where it has none yet."""
    name = f"run_key.{run_id}"
    found = ledger.read_meta(db, name, None)
    if found is None:
        found = secrets.token_hex(KEY_BYTES)
        ledger.set_meta(db, name, found)
    return bytes.fromhex(found)
