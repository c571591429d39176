"""Traces of a verifiers run: `outputs/**/traces.jsonl`, one rollout episode a line, with the traces of its agents.

Follows verifiers/v1/episode.py and trace.py of 0.3.1 and 0.4.0. Each trace has sent its id as X-Session-ID with every
request, so that id is the episode's. Its reward is the sum of its weighted rewards. Not here: what becomes of it
(outcomes).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.cli.imports.export_file import UnreadableFile
from proxy.cli.imports.outcomes import LONGEST_ERROR, NothingThere, SkippedOutcome, WrittenReward, group_name, within

FOLDER: Final = Path("outputs")
NAME: Final = "traces.jsonl"
LONGEST_LINE: Final = 256 * 2**20  # bytes; one line is in memory at a time


class BrokenTrace(Exception):
    """A trace that cannot be read; says why."""


def read(place: Path, reward: str | None) -> Iterator[WrittenReward | SkippedOutcome]:
    """All traces below a folder, or of one file. `reward`: the named one alone. Raises NothingThere,
    UnreadableFile."""
    for file in _files(place):
        run = file.parent.name
        for number, line in _lines(file):
            location = f"{file}, line {number}"
            try:
                yield from _episode(line, location, run, reward)
            except BrokenTrace as error:
                yield SkippedOutcome(location, None, "broken", str(error))


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise NothingThere(f"{place} is not there; verifiers writes into outputs/, or where --output-dir says.")
    candidates = (
        Path(folder, NAME) for folder, _, names in os.walk(place) if NAME in names
    )  # follows no link to a folder
    files = [file for file in candidates if file.is_file()]
    if not files:
        raise NothingThere(f"no {NAME} lies below {place}; name the folder that verifiers wrote into (outputs/).")
    return sorted(files)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with file.open("rb") as rows:
            while row := rows.readline(LONGEST_LINE):
                number += 1
                if not row.endswith(b"\n") and len(row) == LONGEST_LINE:
                    while (continuation := rows.readline(LONGEST_LINE)) and not continuation.endswith(b"\n"):
                        pass
                    row = b"{"  # too long to be one trace; said to be broken
                if row.strip():
                    yield number, row
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read ({error.strerror or error}); nothing was given.") from None


def _episode(line: bytes, location: str, run: str, reward: str | None) -> Iterator[WrittenReward | SkippedOutcome]:
    """Raises BrokenTrace."""
    try:
        row: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        cut = "" if line.endswith(b"\n") else "; it breaks off, so the run may be writing it still"
        raise BrokenTrace(f"the line is not JSON{cut}") from None
    traces = within(row, "traces")
    if not isinstance(traces, list):
        raise BrokenTrace("the line has no list of `traces`, so it is not of verifiers 0.3 or 0.4")
    if not traces:
        reason = f"the episode failed before its agent began ({_error(row)})"
        yield SkippedOutcome(location, _text(within(row, "id")), "no-reward", reason)
    run = _text(within(row, "run", "id")) or run
    group = _text(within(row, "group", "id"))
    for trace in traces:
        try:
            yield _outcome(trace, location, group or run, reward, is_group=group is not None)
        except BrokenTrace as error:
            yield SkippedOutcome(location, _text(within(trace, "id")), "broken", str(error))


def _outcome(
    trace: Any, location: str, scope: str, reward: str | None, *, is_group: bool
) -> WrittenReward | SkippedOutcome:
    """Raises BrokenTrace."""
    id = _text(within(trace, "id"))
    if id is None:
        raise BrokenTrace("a trace has no `id`")
    if within(trace, "agent", "trainable") is False:
        return SkippedOutcome(location, id, "not-trained", "its agent does not train (agent.trainable is false)")
    agent = _text(within(trace, "agent", "name")) or "agent"
    task = _text(within(trace, "task", "key")) or _text(within(trace, "task", "hash"))
    if task is None:
        raise BrokenTrace("the trace's `task` has neither a key nor a hash")
    group = group_name(scope, *([] if is_group else [task]), *([] if agent == "agent" else [agent]))
    if within(trace, "ok") is not True:
        return WrittenReward(location, id, group, None, _error(trace))
    value = _reward(within(trace, "rewards"), reward)
    if value is None:
        return SkippedOutcome(location, id, "no-reward", "it has no reward, and a missing reward is not 0")
    return WrittenReward(location, id, group, value)


def _reward(rewards: Any, name: str | None) -> float | None:
    """The weighted sum, or the one named. Raises BrokenTrace."""
    if rewards is not None and not isinstance(rewards, Mapping):
        raise BrokenTrace("`rewards` is not an object")
    rewards = rewards or {}
    if name is not None:
        if name not in rewards:
            raise BrokenTrace(f"it has no reward {name!r}; it has {', '.join(sorted(rewards)) or 'none'}")
        return _number(rewards[name], name)[0]
    if not rewards:
        return None
    return sum(score * weight for score, weight in (_number(reward, key) for key, reward in rewards.items()))


def _number(reward: Any, name: str) -> tuple[float, float]:
    """Score and weight. verifiers writes null where a score was not a finite number. Raises BrokenTrace."""
    numbers = []
    for key, default in (("score", None), ("weight", 1.0)):
        value = reward.get(key, default) if isinstance(reward, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BrokenTrace(f"the {key} of its reward {name!r} is not a number")
        numbers.append(float(value))
    return numbers[0], numbers[1]


def _error(trace: Any) -> str:
    """Its last error in words."""
    errors = within(trace, "errors")
    last = errors[-1] if isinstance(errors, list) and errors else None
    description = f"{within(last, 'type') or 'error'}: {within(last, 'message') or ''}" if last else ""
    return (description or f"stopped: {within(trace, 'stop_condition') or 'it did not end'}")[:LONGEST_ERROR]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
