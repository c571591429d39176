"""Trials of Harbor: a job that 0.26.0 ran, and as its source writes them (models/trial/result.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.imports.harbor import read
from proxy.cli.imports.outcomes import NothingThere, SkippedOutcome, WrittenReward

JOB = "b1c7ab9e-0000-4000-8000-000000000001"


def trial(jobs: Path, name: str, **result: Any) -> Path:
    """A trial's folder with the fields that TrialResult has."""
    folder = jobs / "2026-11-24__10-00-00" / name
    (folder / "verifier").mkdir(parents=True)
    (folder / "agent").mkdir()
    (folder / "config.json").write_text(json.dumps({"trial_name": name, "task": {"path": "tasks/hello"}}))
    (folder / "result.json").write_text(
        json.dumps({
            "id": JOB, "task_name": "hello-world", "trial_name": name, "trial_uri": folder.as_uri(),
            "task_id": {"path": "tasks/hello"}, "source": None, "task_checksum": "c0ffee",
            "config": {"trial_name": name, "job_id": JOB},
            "agent_info": {"name": "mini-swe-agent", "version": "2.4.6", "model_info": {"name": "small"}},
            "verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": None, "step_results": None, **result,
        })
    )  # fmt: skip
    return folder


def test_a_job_that_harbor_ran() -> None:
    """How it was made is in recorded/harbor/here.py."""
    found = {one.episode: one for one in read(Path(__file__).parent / "recorded/harbor", None)}
    right, wrong, without = (found[f"task__{id}__agent"] for id in ("ToTKrA5", "zMPSopD", "bGTsxri"))
    assert all(isinstance(one, WrittenReward) for one in found.values()) and len(found) == 3
    assert (right.reward, right.error, wrong.reward, wrong.error) == (1.0, None, 0.0, None)
    assert without.reward is None and without.error.startswith("RewardFileNotFoundError: No reward file found")
    assert right.group == wrong.group == without.group and right.group.endswith(":oracle")


def test_each_trial_of_a_job_is_an_episode_and_those_of_one_task_a_group(tmp_path: Path) -> None:
    trial(tmp_path, "hello-world__aaaaaaa")
    trial(tmp_path, "hello-world__bbbbbbb", verifier_result={"rewards": {"reward": 0}})
    trial(tmp_path, "other__ccccccc", task_name="other")
    job = tmp_path / "2026-11-24__10-00-00"
    (job / "result.json").write_text(json.dumps({"id": JOB, "stats": {}}))  # the job's own
    (job / "config.json").write_text(json.dumps({"job_name": job.name}))
    found = [one for one in read(tmp_path, None) if isinstance(one, WrittenReward)]
    assert [(one.episode, one.reward) for one in found] == [
        ("hello-world__aaaaaaa__agent", 1.0), ("hello-world__bbbbbbb__agent", 0.0), ("other__ccccccc__agent", 1.0),
    ]  # fmt: skip
    assert found[0].group == found[1].group == f"{JOB}:hello-world:c0ffee:mini-swe-agent:small" != found[2].group
    assert list(read(job, None)) == found and list(read(job / "other__ccccccc", None)) == found[2:]


@pytest.mark.parametrize(
    ("name", "holds"),
    [("AgentTimeoutError", True), ("ContextWindowExceededError", True), ("RateLimitError", False),
     ("VerifierTimeoutError", False), ("CancelledError", False), ("SomethingNew", False)],
)  # fmt: skip
def test_an_exception_is_an_error_unless_the_agent_ended_the_trial_itself(
    tmp_path: Path, name: str, holds: bool
) -> None:
    raised = {"exception_type": name, "exception_message": "it was so", "exception_traceback": "", "occurred_at": "now"}
    trial(tmp_path, "a__1", exception_info=raised)
    trial(tmp_path, "a__2", step_results=[{"step_name": "one", "exception_info": raised}])
    for one in read(tmp_path, None):
        assert isinstance(one, WrittenReward)
        assert (one.reward, one.error) == ((1.0, None) if holds else (None, f"{name}: it was so"))


def test_one_of_several_rewards_by_its_name(tmp_path: Path) -> None:
    trial(tmp_path, "a__1", verifier_result={"rewards": {"speed": 0.5, "right": 1}})
    (left,) = read(tmp_path, None)
    assert isinstance(left, SkippedOutcome) and left.kind == "broken" and "--reward NAME" in left.reason
    (found,) = read(tmp_path, "speed")
    assert isinstance(found, WrittenReward) and found.reward == 0.5
    (left,) = read(tmp_path, "nope")
    assert isinstance(left, SkippedOutcome) and "right, speed" in left.reason


@pytest.mark.parametrize(
    ("file", "text", "value"),
    [("reward.txt", " 0.25\n", 0.25), ("reward.json", '{"reward": 0.5}', 0.5), ("reward.json", "1", 1.0)],
)
def test_the_verifiers_own_files_count_where_the_result_has_nothing_of_them(
    tmp_path: Path, file: str, text: str, value: float
) -> None:
    (trial(tmp_path, "a__1", verifier_result=None) / "verifier" / file).write_text(text)
    (found,) = read(tmp_path, None)
    assert isinstance(found, WrittenReward) and found.reward == value


def test_what_has_no_reward_is_left_out(tmp_path: Path) -> None:
    trial(tmp_path, "a__1", verifier_result=None)
    (trial(tmp_path, "a__2") / "result.json").unlink()
    first, second = read(tmp_path, None)
    assert isinstance(first, SkippedOutcome) and isinstance(second, SkippedOutcome)
    assert (first.kind, second.kind) == ("no-reward", "no-reward")
    assert "gave no reward" in first.reason and "runs still, or broke off" in second.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not JSON"), ("[]", "not an object"), ('{"trial_name": ""}', "no `trial_name`"),
     ('{"trial_name": "a"}', "no `task_name`"), ("\xff", "not JSON")],
)  # fmt: skip
def test_a_broken_result_costs_that_trial(tmp_path: Path, text: str, said: str) -> None:
    (trial(tmp_path, "a__1") / "result.json").write_text(text, encoding="latin-1")
    trial(tmp_path, "b__2")
    left, found = read(tmp_path, None)
    assert isinstance(left, SkippedOutcome) and left.kind == "broken" and said in left.reason
    assert isinstance(found, WrittenReward)


@pytest.mark.parametrize("value", ["1", True, None, [1]])
def test_a_reward_that_is_not_a_number(tmp_path: Path, value: Any) -> None:
    trial(tmp_path, "a__1", verifier_result={"rewards": {"reward": value}})
    (left,) = read(tmp_path, None)
    assert isinstance(left, SkippedOutcome) and "is not a number" in left.reason


def test_folders_without_a_trial(tmp_path: Path) -> None:
    with pytest.raises(NothingThere, match="not a folder"):
        list(read(tmp_path / "nowhere", None))
    (tmp_path / "result.json").write_text('{"of": "somebody else"}')
    with pytest.raises(NothingThere, match="no trial of Harbor"):
        list(read(tmp_path, None))
