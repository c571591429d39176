"""The short form of `python -m scripts.chaos.cluster`: some faults of two relays, their database and their replicas."""

from __future__ import annotations

import pytest

from scripts.chaos import cluster
from scripts.harness.postgres import find_binaries


@pytest.mark.postgres
@pytest.mark.scale
@pytest.mark.skipif(find_binaries() is None, reason="PostgreSQL is not installed")
async def test_what_is_acknowledged_is_stored_once() -> None:
    result = await cluster.measured(kills=8, clients=8, seed=5)
    assert result["wrong"] == []
    assert result["answers"] > 50 and result["ratings"] > 10


def test_what_is_missing_or_invented_is_told() -> None:
    class Server:
        """Rows of a database."""

        def execute(self, sql: str, database: str) -> list[tuple[str, object]]:
            if "completions" in sql:
                return [("a", "done"), ("b", "pending"), ("d", "done")]
            return [("a", 1.0), ("a", 1.0), ("d", 1.0), ("c", -1.0)]

    ledger = cluster.Ledger(requests=4, answers=["a", "b", "c"], ratings={"a": "bad", "b": "good"})
    assert cluster.wrong(Server(), "any", ledger) == [  # type: ignore[arg-type]
        "c was answered and is not stored",
        "b was answered and is pending",
        "a has 2 live ratings",
        "the rating of b is lost",
        "a is rated 1.0",
        "d is rated by nobody",
        "c is rated by nobody",
    ]
