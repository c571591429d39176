"""The arithmetic of a thousand lines: queues that can be counted by hand, and loads that add up."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from scripts.research import capacity
from scripts.research.capacity import (
    ARRIVALS,
    REQUESTS_AN_ANSWER,
    SPAN_DAYS,
    extract,
    make_load,
    trainers_needed,
    waits,
)


def test_runs_wait_for_the_first_trainer_that_is_free() -> None:
    assert waits([0, 10, 20], 100, 1) == [0, 90, 180]
    assert waits([0, 10, 20], 100, 2) == [0, 0, 80]
    assert waits([0, 500], 100, 1) == [0, 0]


def test_as_many_trainers_as_keep_most_runs_from_waiting() -> None:
    at_once = [0.0] * 40
    assert trainers_needed(at_once, 300) == 13  # each takes three of them before ten minutes are over
    assert trainers_needed([], 300) == 1


@pytest.mark.parametrize("answers_a_day", [20, 200])
def test_a_load_has_the_answers_that_it_is_made_for(answers_a_day: int) -> None:
    load = make_load(json.loads(ARRIVALS.read_text()), answers_a_day, random.Random(3), lines=300)
    expected = answers_a_day * 300 * SPAN_DAYS
    assert 0.75 * expected < load.answers < 1.25 * expected
    assert sum(load.requests_by_second.values()) == load.answers * REQUESTS_AN_ANSWER
    assert load.due == sorted(load.due) and len(load.due) <= load.answers * 0.12 / 32


def test_spans_are_of_one_person_on_their_own_clock(tmp_path: Path) -> None:
    """Twelve commits of Ann at nine in the morning of her own zone. Bob's one and a bot's make no span."""
    azure, repository = tmp_path / "azure", tmp_path / "repository"

    def git(folder: Path, *command: str, **environment: str) -> None:
        subprocess.run(
            ["git", "-C", folder, *command], check=True, capture_output=True, env={**os.environ, **environment}
        )

    def commit(folder: Path, name: str, date: str) -> None:
        person = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": f"{name}@example.org", "GIT_AUTHOR_DATE": date}
        committer = {
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": f"{name}@example.org",
            "GIT_COMMITTER_DATE": date,
        }
        git(folder, "commit", "--allow-empty", "-m", "x", **person, **committer)

    for folder in (azure, repository):
        folder.mkdir()
        git(folder, "init", "-q")
    (azure / "data").mkdir()
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.6805900,1,1",
    ]
    (azure / "data/AzureLLMInferenceTrace_code.csv").write_text("\n".join(rows) + "\n")
    git(azure, "add", ".")
    commit(azure, "ann", "2024-01-01T00:00:00+0000")
    for day in range(1, 13):
        commit(repository, "ann", f"2024-01-{day:02}T09:00:00+0900")
        commit(repository, "dependabot", f"2024-01-{day:02}T03:00:00+0000")
    commit(repository, "bob", "2024-01-03T09:00:00+0000")
    arrivals = extract(repository, azure)
    (span,) = arrivals["spans_minutes"]
    assert [minute % 1440 for minute in span] == [9 * 60] * 12 and span[0] < 7 * 1440
    assert arrivals["requests_in_trace"] == 2 and set(arrivals["gaps_s"]) == {4.0}


def test_the_report_is_of_the_benchmarks() -> None:
    report = json.loads((capacity.BENCHMARKS / "capacity.json").read_text())
    assert report["carried"] == capacity.carried()
    assert len(report["loads"]) == len(capacity.ANSWERS_A_DAY)
