"""A judge with a rule in a model's place, behind a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scripts.harness.rule_judge import FakeJudge


def pushback(request: str, reply: str, follow_up: str) -> str:
    """`no, …` and `shorter` are corrections, `that works` is a success."""
    if follow_up.startswith("no,") or "shorter" in follow_up:
        return "correction"
    return "solved" if "that works" in follow_up else "nothing"


@pytest.fixture
async def judge() -> AsyncIterator[FakeJudge]:
    fake = FakeJudge(pushback)
    await fake.start()
    yield fake
    await fake.stop()
