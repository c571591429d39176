"""How PostgreSQL finds rows: no query compares each of many with each of many others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from scripts.harness.records import adapter, claim, rated
from store.learning import samples
from store.postgres.connection import PostgresConnection
from store.store import Store

pytestmark = pytest.mark.postgres
COPIES = 200
SETTINGS = {
    "foreign": False, "line": "common", "oldest": 0, "newest": 8, "run": None, "runs": orjson.dumps([1]).decode(),
}  # fmt: skip


def copy(db: PostgresConnection, table: str, *columns: str) -> None:
    """Copies of all rows; `columns` name what is another one's in each."""
    numbers = "'seq', t.seq + 100 * n, " if table != "run_samples" else ""
    names = ", ".join(f"'{column}', t.{column} || '-' || n" for column in columns)
    db.execute(
        f"INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object({numbers}{names}))).* "
        f"FROM {table} t, generate_series(1, {COPIES}) n"
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def compared(db: PostgresConnection, sql: str) -> int:
    """Pairs of rows that a query looked at and that did not belong together."""
    ((text,),) = db.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", SETTINGS).fetchall()
    (whole,) = text if isinstance(text, list) else orjson.loads(text)
    return sum(int(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]) for node in nodes(whole["Plan"]))


@pytest.mark.parametrize("condition", ["", f"AND {samples.GIVEN_BACK}"], ids=["fresh", "given back"])
async def test_fresh_ratings_are_not_compared_with_each_sample(database: str, tmp_path: Path, condition: str) -> None:
    store = await Store.open(tmp_path, url=database)
    await rated(store, 8)
    run, _ = await claim(store)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    await store.close()
    with closing(PostgresConnection(database)) as db:
        copy(db, "completions", "id")
        copy(db, "ratings", "id", "completion_id")
        copy(db, "run_samples", "rating_id")
        db.execute("ANALYZE completions, ratings, run_samples")  # autovacuum passes over tables as small as runs
        assert compared(db, f"SELECT r.id {samples.FRESH} {condition}") < 10 * 8 * COPIES
