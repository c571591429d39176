"""Whole runs of episodes on a tiny model."""

import pytest

from tests.harness import tiny
from tests.trainer.runs import go, of, second


@pytest.fixture(scope="module")
def lines(model):
    """Rated replies said again as turns: five episodes of two turns, two groups and one on its own."""
    found = [line for line in tiny.sample_lines(model) if line["split"] == "train"][:10]
    for at, line in enumerate(found):
        episode, group = at // 2, ("a", "a", "b", "b", None)[at // 2]
        reward = (1.0, 0.0, 0.5, 0.5, 1.0)[episode]
        part = {"id": str(episode), "group": group, "reward": reward, "turn": at % 2, "turns": 2, "turn_reward": None}
        line |= {"rating": f"ep-{episode}-{at % 2}", "ratings": [], "human": False, "source": "program"}
        line |= {"reward": reward, "comment": None, "correction": None, "episode": part}
    return found


@pytest.mark.parametrize("objective", ["mis-po", "grpo"])
def test_a_run_of_episodes(tmp_path, model, lines, objective):
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"objective": objective})
    result, events = go(folder)
    assert result["status"] in ("passed", "rejected"), result["reason"]
    metrics = result["metrics"]
    assert (metrics["groups_kept"], metrics["groups_dropped"], metrics["episodes_alone"]) == (1, 1, 1)
    assert metrics["episodes"] == 5
    used = {rating for rating, outcome in result["samples"].items() if outcome["used"]}
    assert used <= {f"ep-{n}-{turn}" for n in (0, 1, 4) for turn in (0, 1)} and used
    assert "chance" not in result["gate"] and "contrast" not in result["gate"]
    assert result["baseline_after"] == 0.0  # people's own: no program moves it
    assert {"groups", "learning_rate"} <= {event["name"] for event in of(events, "choice")}
    if result["status"] == "passed":
        assert 0 < result["episode_baseline_after"] < 0.1


def test_groups_that_are_worth_the_same_teach_nothing(tmp_path, model, lines):
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines[4:8]))
    assert result["status"] == "empty" and "advantage of 0" in result["reason"]


def test_turns_of_the_version_before_train_and_are_counted_as_late(tmp_path, model, lines, first):
    """A group that went on while a run trained."""
    result, events = second(tmp_path, model, lines, first, overrides={"drift_bound": 10.0})
    assert result["status"] in ("passed", "rejected"), result["reason"]
    metrics, used = result["metrics"], sum(outcome["used"] for outcome in result["samples"].values())
    assert metrics["episodes"] == 5 and 0 < metrics["late_trained"] == used <= metrics["late"]
    assert "late" in {event["name"] for event in of(events, "choice")}


@pytest.mark.parametrize("objective", ["mis-po", "distill"])
def test_words_on_what_was_wrong_teach_also_where_a_group_is_even(tmp_path, model, lines, objective):
    said = [{**line, "reward": -1.0, "comment": "Be brief.", "episode": {**line["episode"]}} for line in lines[4:8]]
    for line in said:
        line["episode"]["reward"] = -1.0
    folder = tiny.run_folder(tmp_path / "run", model, [*lines[:4], *said], overrides={"objective": objective})
    result, events = go(folder)
    assert result["status"] in ("passed", "rejected"), result["reason"]
    taught = {rating for rating, outcome in result["samples"].items() if outcome.get("taught_by") == "comment"}
    assert taught == {line["rating"] for line in said}
    assert {result["samples"][rating]["advantage"] for rating in taught} == {0.0}
    used = {rating for rating, outcome in result["samples"].items() if outcome["used"]}
    assert taught <= used and (used == taught) == (objective == "distill")
    assert ("combine" in {event["value"] for event in of(events, "choice")}) == (objective == "mis-po")
