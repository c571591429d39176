"""Events of a run, and the sign of life that keeps it from being taken for hung."""

from __future__ import annotations

import io
import json

import pytest

from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop, Stopped


def said(out):
    return [json.loads(line)["event"] for line in out.getvalue().splitlines()]


def test_a_sign_of_life_only_after_a_silence(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("trainer.io.progress.time.monotonic", lambda: clock[0])
    out = io.StringIO()
    with Progress(tmp_path, out) as progress:
        for seconds in (5, 10, 10, 1, 15):  # the third is the first that is more than 20 s after the last word
            clock[0] += seconds
            progress.alive()
        progress.event("step", step=1)
        clock[0] += 15
        progress.alive()
        clock[0] += 15
        progress.alive()
    assert said(out) == ["alive", "step", "alive"]


def test_who_looks_whether_to_stop_is_alive():
    seen, stop = [], Stop()
    stop.check()
    stop.on_check = lambda: seen.append(1)
    stop.check()
    stop.ask("enough")
    with pytest.raises(Stopped):
        stop.check()
    assert len(seen) == 2


def test_a_run_is_never_silent_in_its_long_phases(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.io.progress.BEAT_S", -1.0)
    model = tiny.make_model(tmp_path / "tiny")
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model))
    out, stop = io.StringIO(), Stop()
    with Progress(folder, out) as progress:
        stop.on_check = progress.alive
        assert loop.run(folder, progress, stop)["status"] == "passed"
    phase, alive = "", set()
    for event in map(json.loads, out.getvalue().splitlines()):
        phase = event.get("phase", phase)
        if event["event"] == "alive":
            alive.add(phase)
    assert alive == {"old", "train", "gate"}
