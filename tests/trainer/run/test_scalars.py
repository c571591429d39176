"""A run's numbers in an event file that TensorBoard reads, and a plain word where the package is missing."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from tests.harness import tiny
from tests.trainer.runs import go
from trainer import launch
from trainer.launch import LocalLauncher
from trainer.run.scalars import NO_SCALARS


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of the event files: records of a length, its checksum, an Event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_a_run_writes_its_numbers(tmp_path, model, lines):
    pytest.importorskip("tensorboardX")
    out = tmp_path / "tensorboard" / "run-1"
    train = [line for line in lines if line["split"] == "train"]
    timed = dict(zip((line["rating"] for line in train), (1.0, 2.0, 9.0), strict=False))
    lines = [{**line, "seconds": timed.get(line["rating"])} for line in lines]
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, tensorboard=str(out)))
    assert result["status"] == "passed", result
    found = scalars(out)
    steps = [e for e in events if e["event"] == "step"]
    for name, tag in [("loss", "loss"), ("kl_ref", "kl_ref"), ("grad_norm", "grad_norm"), ("rate", "learning_rate")]:
        assert found[f"train/{tag}"] == [(e["step"], pytest.approx(e[name], rel=1e-5, abs=1e-7)) for e in steps]
    assert {"train/acceptance", "train/kl_old", "filter/acceptance", "filter/rejected_stale"} <= set(found)
    rewards = [line["reward"] for line in lines if line["split"] == "train"]
    assert found["samples/reward"] == [(1, pytest.approx(sum(rewards) / len(rewards)))]
    assert found["samples/liked"] == [(1, pytest.approx(sum(reward > 0 for reward in rewards) / len(rewards)))]
    assert found["samples/answer_seconds"] == [(1, 2.0)]
    for name, check in result["gate"].items():
        if check["value"] is not None:
            at = 0 if name in ("contrast", "chance") else len(steps)  # the ratings are judged before the first step
            assert found[f"gate/{name}"] == [(at, pytest.approx(check["value"], rel=1e-5))]


def test_a_second_try_is_a_line_of_its_own(tmp_path, model, lines):
    pytest.importorskip("tensorboardX")
    out = tmp_path / "scalars"
    gate = tiny.LOOSE | {"base_nll_rise": -1.0}
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, gate=gate, tensorboard=str(out)))
    assert result["status"] == "rejected"
    found = scalars(out)
    assert [step for step, _ in found["train/loss"]] == [step for step, _ in found["second_try/loss"]] == [1, 2, 3, 4]
    assert found["second_try/learning_rate"][0][1] == pytest.approx(found["train/learning_rate"][0][1] / 2)
    assert "gate_second_try/base_nll" in found


def test_without_the_package_the_run_ends_before_it_begins(tmp_path, model, lines, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, tensorboard=str(tmp_path / "scalars")))
    assert result["status"] == "failed"
    assert result["reason"] == f"{NO_SCALARS}."
    assert [e["event"] for e in events] == ["end"]
    assert json.loads((tmp_path / "run" / "result.json").read_bytes())["seconds"] < 60


def test_nobody_starts_a_run_that_could_not_write_them(monkeypatch):
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name == "tensorboardX" else object())
    assert LocalLauncher().available() is None
    assert LocalLauncher().available(tensorboard=True) == NO_SCALARS
    monkeypatch.setattr(launch, "find_spec", lambda name: object())
    assert LocalLauncher().available(tensorboard=True) is None
