"""One random key for each run, which opens the samples in its folder. Kept in the encrypted database and nowhere else.

Not here: what is encrypted with it (trainer.io.encrypted_files), how the trainer gets it (trainer.launch).
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import Final

from store.file import meta
from store.file.reader import Reader

KEY_BYTES: Final = 32


def of(db: sqlite3.Connection, run_id: int) -> bytes:
    """The run's key, made where it has none yet."""
    hex_key = meta.read_meta(db, _name(run_id), None)
    if hex_key is None:
        hex_key = secrets.token_hex(KEY_BYTES)
        meta.set_meta(db, _name(run_id), hex_key)
    return bytes.fromhex(hex_key)


async def read_key(reader: Reader, run_id: int) -> bytes | None:
    hex_key = await meta.get_meta(reader, _name(run_id), None)
    return None if hex_key is None else bytes.fromhex(hex_key)


def drop_all(db: sqlite3.Connection) -> None:
    """Nothing is encrypted with them any more."""
    db.execute("DELETE FROM meta WHERE key GLOB ?", (_name("*"),))


def _name(run_id: int | str) -> str:
    return f"run_key.{run_id}"
