"""Traces of verifiers: recorded ones of 0.4.0, and what is wrong with a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.imports import verifiers
from proxy.cli.imports.outcomes import NothingThere, SkippedOutcome, WrittenReward
from proxy.cli.imports.verifiers import read

RECORDED = Path(__file__).with_name("recorded") / "traces.jsonl"  # of integrations/verifiers, run with vf-eval 0.4.0


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def one(tmp_path: Path, row: Any, reward: str | None = None) -> WrittenReward | SkippedOutcome:
    """What a single line gives."""
    text = row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n"
    (tmp_path / "traces.jsonl").write_bytes(text)
    (found,) = read(tmp_path, reward)
    return found


def changed(**trace: Any) -> dict[str, Any]:
    row = recorded()[0]
    row["traces"][0] |= trace
    return row


def test_recorded_traces_give_the_weighted_sum_and_one_group_for_each_task() -> None:
    found = [one for one in read(RECORDED, None) if isinstance(one, WrittenReward)]
    traces = [row["traces"][0] for row in recorded()]
    assert [one.episode for one in found] == [trace["id"] for trace in traces]
    for one, trace in zip(found, traces, strict=True):
        rewards = trace["rewards"]
        assert one.reward == 0.75 * rewards["right"]["score"] + 0.25 * rewards["short"]["score"]
        assert one.group == f"{recorded()[0]['run']['id']}:{trace['task']['key']}"
    assert len({one.group for one in found}) == len({trace["task"]["key"] for trace in traces})


def test_one_of_several_rewards_by_its_name(tmp_path: Path) -> None:
    rewards = {"right": {"score": 0.5, "weight": 3.0}, "short": {"score": 1.0, "weight": 1.0}}
    found = one(tmp_path, changed(rewards=rewards), "right")
    assert isinstance(found, WrittenReward) and found.reward == 0.5
    left = one(tmp_path, changed(rewards=rewards), "nope")
    assert isinstance(left, SkippedOutcome) and left.kind == "broken" and "right, short" in left.reason


def test_an_error_is_the_episodes_and_not_a_reward_of_0(tmp_path: Path) -> None:
    wrong = [{"type": "ProviderError", "message": "503"}, {"type": "HarnessError", "message": "exited 1"}]
    found = one(tmp_path, changed(ok=False, errors=wrong))
    assert isinstance(found, WrittenReward) and found.reward is None and found.error == "HarnessError: exited 1"
    found = one(tmp_path, changed(ok=False, errors=[], stop_condition="agent_timeout"))
    assert isinstance(found, WrittenReward) and found.error == "stopped: agent_timeout"


def test_a_missing_reward_is_not_0_and_another_agents_trace_does_not_train(tmp_path: Path) -> None:
    assert one(tmp_path, changed(rewards={}))[2:3] == ("no-reward",)
    row = recorded()[0]
    row["traces"][0]["agent"]["trainable"] = False
    assert one(tmp_path, row)[2:3] == ("not-trained",)
    failed = {**recorded()[0], "traces": [], "ok": False, "errors": [{"type": "EnvError", "message": "no box"}]}
    left = one(tmp_path, failed)
    assert isinstance(left, SkippedOutcome) and left.kind == "no-reward" and "EnvError: no box" in left.reason


def test_several_agents_of_one_episode_are_groups_of_their_own(tmp_path: Path) -> None:
    row = recorded()[0]
    row["traces"].append(json.loads(json.dumps(row["traces"][0])) | {"id": "other"})
    row["traces"][1]["agent"]["name"] = "critic"
    (tmp_path / "traces.jsonl").write_text(json.dumps(row) + "\n")
    first, second = read(tmp_path, None)
    assert isinstance(first, WrittenReward) and isinstance(second, WrittenReward)
    assert second.group == first.group + ":critic"
    given = {**recorded()[0], "group": {"id": "step-3"}}
    found = one(tmp_path, given)
    assert isinstance(found, WrittenReward) and found.group == "step-3"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{\n", "not JSON"), (b'{"traces": [', "may be writing it still"), (b"[]\n", "no list of `traces`"),
        (b'{"traces": 7}\n', "no list of `traces`"), (b'{"traces": [7]}\n', "no `id`"), (b"\xff\n", "not JSON"),
        (changed(task=None), "neither a key nor a hash"), (changed(rewards=[1]), "not an object"),
        (changed(rewards={"a": {"score": None, "weight": 1.0}}), "score of its reward 'a' is not a number"),
        (changed(rewards={"a": {"score": True}}), "not a number"), (changed(rewards={"a": 1.0}), "not a number"),
        (changed(rewards={"a": {"score": 1, "weight": "2"}}), "weight of its reward"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_said_with_its_place_and_the_others_are_read(
    tmp_path: Path, line: Any, said: str
) -> None:
    bad = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
    (tmp_path / "traces.jsonl").write_bytes(RECORDED.read_bytes() + bad)
    *good, left = read(tmp_path, None)
    assert len(good) == 3 and all(isinstance(one, WrittenReward) for one in good)
    assert isinstance(left, SkippedOutcome) and left.kind == "broken" and said in left.reason
    assert left.position == f"{tmp_path / 'traces.jsonl'}, line 4"


def test_a_line_without_end_costs_that_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "LONGEST_LINE", 50_000)
    (tmp_path / "traces.jsonl").write_bytes(b'{"traces": "' + b"x" * 180_000 + b'"}\n' + RECORDED.read_bytes())
    left, *good = read(tmp_path, None)
    assert isinstance(left, SkippedOutcome) and left.position.endswith("line 1") and len(good) == 3
    assert [one.position[-1] for one in good] == ["2", "3", "4"]


def test_all_runs_below_a_folder_and_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
        (tmp_path / "outputs" / name / "traces.jsonl").write_bytes(RECORDED.read_bytes())
    (tmp_path / "outputs/loop").symlink_to(tmp_path / "outputs")
    assert len(list(read(tmp_path / "outputs", None))) == 6
    with pytest.raises(NothingThere, match="is not there"):
        list(read(tmp_path / "nowhere", None))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingThere, match=r"no traces\.jsonl lies below"):
        list(read(tmp_path / "empty", None))
