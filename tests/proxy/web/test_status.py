from __future__ import annotations

from typing import Any

import pytest

from proxy.cli.tables import acceptance
from proxy.training.run_state import RunProgress
from proxy.training.schedule_rules import RunDecision
from proxy.training.weights_compare import WeightsVerdict
from proxy.web.status import training_line
from scripts.harness.in_process import Proxy
from store.learning.samples import SampleRequirements


def test_a_run_that_starts_says_what_comes_first() -> None:
    """The comparison takes minutes with a large model, or on a busy machine."""
    due = RunDecision(True, "")
    assert "compared with the weights" in training_line(None, RunProgress(), due, None)
    assert training_line(None, RunProgress(), due, WeightsVerdict("same", "the same")) == "starts now"
    assert training_line(None, RunProgress(), RunDecision(False, "paused"), None) == "waits: paused"


def test_a_relay_that_only_follows_does_not_say_that_a_run_starts() -> None:
    due, verdict = RunDecision(True, ""), WeightsVerdict("same", "the same")
    assert "the relay of this database that learns" in training_line(
        None, RunProgress(), due, verdict, is_learner=False
    )


async def test_status_says_in_one_line_why_nothing_trains(proxy: Proxy) -> None:
    await proxy.chat("a")
    await proxy.rate(completion_id="last", rating="good")
    assert (await proxy.get("/rl/status"))["training"]["line"] == "waits: 1 of 4 fresh ratings (train.start_at)"
    said = await proxy.say("a", "You said: a ", "/rl status")
    assert "Training waits: 1 of 4 fresh ratings (train.start_at)." in said


def test_what_kept_tokens_from_training() -> None:
    metrics = {"acceptance": 0.9, "rejected_fresh_mismatch": 0.0, "rejected_stale": 0.08, "rejected_token": 0.02}
    assert acceptance(metrics) == (
        "90.0% of the rated tokens can train; left out 8.0% (of earlier versions, moved on since), "
        "2.0% (drifted one by one)"
    )
    late = {"acceptance": 1.0, "late": 12.0, "late_trained": 9.0}
    assert acceptance(late) == "100.0% of the rated tokens can train; 9 of 12 late ratings trained"
    assert acceptance(late | {"episodes": 40.0}).endswith("9 of 12 late turns trained")
    assert acceptance({"acceptance": 1.0}) == "100.0% of the rated tokens can train" and acceptance({}) == ""


async def test_a_run_that_ends_meanwhile_is_not_half_shown(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ratings are fresh again as soon as it is shown as ended."""
    await proxy.post("/rl/pause")
    for i in range(4):
        response = await proxy.chat(f"q{i}")
        await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="good")
    claimed = await proxy.store.samples.claim(
        SampleRequirements(
            model="fake", live=0, max_version_gap=8, limit=4, held_share=0, folder_of=str, version=1, min_total=1
        )
    )
    assert claimed is not None
    read = proxy.store.samples.fresh

    async def and_then_it_ends(**about: Any) -> Any:
        found = await read(**about)
        if await proxy.store.runs.unfinished():
            await proxy.store.runs.end(claimed.id, "rejected", "no better", None)
        return found

    monkeypatch.setattr(proxy.store.samples, "fresh", and_then_it_ends)
    status = await proxy.get("/rl/status")
    assert (status["last_run"]["status"], status["ratings"]["fresh"]) in (("claimed", 0), ("rejected", 4))
