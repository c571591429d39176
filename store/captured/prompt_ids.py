"""The token ids of prompts, kept once: a turn's prompt begins with that of the turn before.

Ids are cut into blocks, and a block's hash covers that of the block before it. So the last block names all of them, as
a message in the tree names its conversation. What is left over stays with its completion. Not here: what the ids are
for.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final

from store.captured.tree import SIZE, delete_upwards

BLOCK: Final = 4096  # bytes: 1,024 ids

Blocks = Mapping[bytes, tuple[bytes | None, bytes]]  # hash -> the one before, its ids

# Blocks that several of these completions share come once.
PATHS_OF_COMPLETIONS: Final = """WITH RECURSIVE path (hash) AS (
    SELECT c.prompt_block FROM completions c
    WHERE c.id IN (SELECT value FROM json_each(?)) AND c.prompt_block IS NOT NULL
    UNION SELECT b.parent FROM path JOIN prompt_blocks b ON b.hash = path.hash WHERE b.parent IS NOT NULL)
SELECT b.hash, b.parent, b.ids FROM path JOIN prompt_blocks b ON b.hash = path.hash"""


def add(db: sqlite3.Connection, packed: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Store the blocks that are new; the name of the last one, and what is left over."""
    if packed is None or len(packed) < BLOCK:
        return None, packed
    view = memoryview(packed)
    names: list[bytes] = []
    for start in range(0, len(packed) - BLOCK + 1, BLOCK):
        digest = hashlib.blake2b(names[-1] if names else b"", digest_size=SIZE)
        digest.update(view[start : start + BLOCK])
        names.append(digest.digest())
    stored_count = len(names)
    while stored_count and not _exists(db, names[stored_count - 1]):  # a stored block has all before it stored
        stored_count -= 1
    for n in range(stored_count, len(names)):
        ids = bytes(view[n * BLOCK : (n + 1) * BLOCK])
        db.execute("INSERT INTO prompt_blocks VALUES (?, ?, ?)", (names[n], names[n - 1] if n else None, ids))
    return names[-1], bytes(view[len(names) * BLOCK :])


def blocks(rows: Iterable[sqlite3.Row]) -> Blocks:
    return {row["hash"]: (row["parent"], row["ids"]) for row in rows}


def whole(blocks: Blocks, last: bytes | None, tail: bytes | None) -> bytes | None:
    """All of a prompt's ids."""
    parts = [] if tail is None else [tail]
    while last is not None:
        last, ids = blocks[last]
        parts.append(ids)
    return b"".join(reversed(parts)) if parts else None


def prune(db: sqlite3.Connection, leaves: Iterable[bytes]) -> None:
    """Delete these blocks and those before them as far as no prompt needs them any more."""
    delete_upwards(
        db,
        """DELETE FROM prompt_blocks AS b WHERE hash = ?
        AND NOT EXISTS (SELECT 1 FROM prompt_blocks later WHERE later.parent = b.hash)
        AND NOT EXISTS (SELECT 1 FROM completions c WHERE c.prompt_block = b.hash)
        RETURNING parent""",
        leaves,
    )


def _exists(db: sqlite3.Connection, name: bytes) -> bool:
    return db.execute("SELECT 1 FROM prompt_blocks WHERE hash = ?", (name,)).fetchone() is not None
