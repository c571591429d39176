"""Trials of Harbor: `jobs/JOB/TRIAL/result.json`, with the verifier's rewards beside it.

Follows harbor/models/trial (result.py, paths.py, error_policy.py) and verifier/verifier.py, and was tested with a job
that Harbor 0.26.0 ran. A trial's agent sends `TRIAL__agent` as its session, so that is the episode's id. Not here: what
becomes of a reward (outcomes).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.cli.imports.outcomes import LONGEST_ERROR, NothingThere, SkippedOutcome, WrittenReward, group_name, within

FOLDER: Final = Path("jobs")
LARGEST: Final = 64 * 2**20  # bytes of a file; a result is some kilobytes
# error_policy.py: the agent ended the trial by itself, so its reward is a measurement. After all others it is not.
REWARD_HOLDS: Final = frozenset({
    "AgentTimeoutError", "ContextWindowExceededError", "OutputTokenExceededError", "ContextLengthExceededError",
    "OutputLengthExceededError", "AgentSafetyRefusalError", "ContentPolicyViolationError",
})  # fmt: skip


class BrokenTrial(Exception):
    """A trial that cannot be read; says why."""


def read(place: Path, reward: str | None) -> Iterator[WrittenReward | SkippedOutcome]:
    """All trials below a folder. `reward`: which of several rewards. Raises NothingThere."""
    if not place.is_dir():
        raise NothingThere(f"{place} is not a folder; Harbor writes into jobs/, or where --jobs-dir says.")
    has_trial = False
    for path, folders, names in os.walk(place):  # follows no link to a folder
        folders.sort()
        if not {"result.json", "config.json"} & set(names):
            continue
        folder = Path(path)
        try:
            outcome = _trial(folder, names, reward)
        except BrokenTrial as error:
            outcome = SkippedOutcome(str(folder / "result.json"), None, "broken", str(error))
        if outcome is not None:
            has_trial = True
            folders.clear()  # nothing of Harbor's own lies deeper
            yield outcome
    if not has_trial:
        raise NothingThere(f"no trial of Harbor lies below {place}; name its jobs folder, a job, or a trial.")


def _trial(folder: Path, names: list[str], reward: str | None) -> WrittenReward | SkippedOutcome | None:
    """None where it is a job's folder, or somebody else's. Raises BrokenTrial."""
    config = _object(folder / "config.json") if "config.json" in names else {}
    if "result.json" not in names:
        trial = config.get("trial_name")
        if not isinstance(trial, str):
            return None
        return SkippedOutcome(
            str(folder), f"{trial}__agent", "no-reward", "it has no result.json: it runs still, or broke off"
        )
    result = _object(folder / "result.json")
    trial = result.get("trial_name")
    if not isinstance(trial, str) or not trial:
        if "trial_name" in config:
            raise BrokenTrial("it has no `trial_name`")
        return None
    location, id = str(folder / "result.json"), f"{trial}__agent"
    group = _group(folder, result)
    if (error := _error(result)) is not None:
        return WrittenReward(location, id, group, None, error)
    rewards = within(result, "verifier_result", "rewards")
    if rewards is None:
        rewards = _of_files(folder / "verifier")
    value = _reward(rewards, reward)
    if value is None:
        return SkippedOutcome(location, id, "no-reward", "its verifier gave no reward, and a missing reward is not 0")
    return WrittenReward(location, id, group, value)


def _group(folder: Path, result: Mapping[str, Any]) -> str:
    """Trials of one job at one task, by one agent and model."""
    parts = (
        within(result, "config", "job_id") or folder.parent.name, result.get("task_name"), result.get("task_checksum"),
        within(result, "agent_info", "name"), within(result, "agent_info", "model_info", "name"),
    )  # fmt: skip
    if not isinstance(parts[1], str):
        raise BrokenTrial("it has no `task_name`")
    return group_name(*(str(part) for part in parts if part))


def _error(result: Mapping[str, Any]) -> str | None:
    """The first exception after which the reward says nothing, in words."""
    steps = result.get("step_results")
    for outcome in (result, *(steps if isinstance(steps, list) else ())):
        exception = within(outcome, "exception_info")
        if exception is not None and within(exception, "exception_type") not in REWARD_HOLDS:
            kind, message = within(exception, "exception_type"), within(exception, "exception_message")
            return f"{kind}: {message}"[:LONGEST_ERROR]
    return None


def _of_files(folder: Path) -> Any:
    """The verifier's own files, where the result has nothing of them: the JSON goes first, as in Harbor."""
    if (folder / "reward.json").is_file():
        rewards = _json(folder / "reward.json")
        return rewards if isinstance(rewards, Mapping) else {"reward": rewards}
    if (folder / "reward.txt").is_file():
        text = _bytes(folder / "reward.txt").decode("utf-8", "replace").strip()
        try:
            return {"reward": float(text)}
        except ValueError:
            raise BrokenTrial(f"{folder / 'reward.txt'} is not a number") from None
    return None


def _reward(rewards: Any, name: str | None) -> float | None:
    """The one that is named, else `reward`, else the only one. Raises BrokenTrial."""
    if rewards is not None and not isinstance(rewards, Mapping):
        raise BrokenTrial("its rewards are not an object")
    if not rewards:
        return None
    name = name or ("reward" if "reward" in rewards else next(iter(rewards)) if len(rewards) == 1 else None)
    if name is None:
        raise BrokenTrial(f"it has several rewards ({', '.join(sorted(rewards))}): say which with --reward NAME")
    if name not in rewards:
        raise BrokenTrial(f"it has no reward {name!r}; it has {', '.join(sorted(rewards))}")
    value = rewards[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenTrial(f"its reward {name!r} is not a number")
    return float(value)


def _object(file: Path) -> dict[str, Any]:
    content = _json(file)
    if not isinstance(content, dict):
        raise BrokenTrial(f"{file.name} is not an object")
    return content


def _json(file: Path) -> Any:
    try:
        return orjson.loads(_bytes(file))
    except orjson.JSONDecodeError:
        raise BrokenTrial(f"{file.name} is not JSON") from None


def _bytes(file: Path) -> bytes:
    """Raises BrokenTrial."""
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except OSError as error:
        raise BrokenTrial(f"{file.name} cannot be read ({error.strerror or error})") from None
    if len(content) > LARGEST:
        raise BrokenTrial(f"{file.name} has more than {LARGEST // 2**20} MB")
    return content
