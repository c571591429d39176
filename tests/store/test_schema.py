"""A database of an older rlproxy is brought up to date with what is in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from store import schema
from store.records import Link
from store.store import Store

FIRST = files("store").joinpath("migrations/0001_first.sql").read_text(encoding="utf-8")
ROWS = """
INSERT INTO completions (id, request_id, choice, created_at, dialect, backend, model, served_model, version, turn,
    turn_rule, streamed, sampling, request, status)
VALUES ('a', 'a', 0, 1, 'chat', 'vllm', 'm', 'm@v1', 1, 'main', 'default', 0, '{}', x'7b7d', 'done');
INSERT INTO ratings (id, completion_id, rater, value, weight, source, created_at, live)
VALUES ('rt-1', 'a', 'owner', 1.0, 1.0, 'http', 2.0, 1);
INSERT INTO links VALUES ('slack', 'C1', '1', 'a');
INSERT INTO adapters VALUES (1, 0, NULL, 'm', '/v1', 3.0, '{}');
UPDATE pointer SET live = 1, changed_at = 4.0, reason = 'run 1 passed the gate';
"""


async def test_from_the_first_schema(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / schema.NAME)) as db:
        db.executescript(f"{FIRST}; {ROWS}; PRAGMA user_version = 1")
    store = await Store.open(tmp_path)
    try:
        rating = await store.ratings.get("rt-1")
        assert rating is not None and (rating.value, rating.scale) == (1.0, "unit")
        assert await store.reactions.linked("slack", "C1", "1") == Link("slack", "C1", "1", "a", None)
        adapter = await store.versions.get(1)
        assert adapter is not None and adapter.withdrawn is None
        pointer = await store.versions.pointer()
        assert (pointer.live, pointer.actor) == (1, "")  # nobody knows who: then nobody's choice is undone
    finally:
        await store.close()
