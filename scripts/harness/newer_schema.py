"""A schema that is newer than the product's: how a home is brought up to date, without a release that has to be.

Its one migration rewrites the largest table, which costs most and takes most room, and adds a table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store.file import schema

MIGRATION: Final = """
CREATE TABLE messages_anew (
    hash   BLOB NOT NULL UNIQUE,
    parent BLOB REFERENCES messages (hash),
    role   TEXT NOT NULL,
    body   BLOB NOT NULL,
    cut    INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO messages_anew SELECT hash, parent, role, body, cut FROM messages;
DROP TABLE messages;
ALTER TABLE messages_anew RENAME TO messages;
CREATE INDEX messages_parent ON messages (parent);
-- Rows that were there before have it, too.
CREATE TABLE moods (completion_id TEXT NOT NULL REFERENCES completions (id) ON DELETE CASCADE) STRICT;
INSERT INTO moods SELECT id FROM completions;
"""


def write(folder: Path) -> Path:
    """The product's migrations and a newer one, as files in this new folder."""
    folder.mkdir()
    scripts = schema.numbers()
    for number, script in scripts.items():
        (folder / f"{number:04d}.sql").write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / f"{max(scripts) + 1:04d}.sql").write_text(MIGRATION, encoding="utf-8")
    return folder


@contextlib.contextmanager
def installed(folder: Path) -> Iterator[int]:
    """In this process the store is of the newer rlproxy, meanwhile; the number of its schema."""
    products, schema.MIGRATIONS = schema.MIGRATIONS, folder
    schema.made_by.cache_clear()
    try:
        yield max(schema.numbers())
    finally:
        schema.MIGRATIONS = products
        schema.made_by.cache_clear()
