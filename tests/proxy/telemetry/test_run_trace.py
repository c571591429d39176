"""Runs folded from their events."""

from __future__ import annotations

from proxy.telemetry.run_trace import RunTraces


def test_a_run_and_its_phases() -> None:
    traces = RunTraces()
    assert traces.add({"at": 1.0, "run": 3, "event": "started", "samples": 8}) is None
    assert traces.add({"at": 2.0, "run": 3, "event": "phase", "phase": "load"}) is None
    assert traces.add({"at": 3.0, "run": 3, "event": "phase", "phase": "train"}) is None
    assert traces.add({"at": 4.0, "run": 9, "event": "ended", "status": "done"}) is None, "another run"
    run = traces.add({"at": 5.0, "run": 3, "event": "ended", "status": "rejected"})
    assert run is not None and (run.id, run.started, run.ended, run.status, run.samples) == (3, 1.0, 5.0, "rejected", 8)
    assert [(p.name, p.started, p.ended) for p in run.phases] == [("load", 2.0, 3.0), ("train", 3.0, 5.0)]
    assert traces.add({"at": 6.0, "run": 3, "event": "ended", "status": "done"}) is None


def test_a_stop_ends_a_stretch_and_the_next_start_begins_one() -> None:
    traces = RunTraces()
    traces.add({"at": 1.0, "run": 3, "event": "started", "samples": 8})
    stopped = traces.add({"at": 2.0, "run": 3, "event": "stopped", "reason": "asked to"})
    assert stopped is not None and stopped.status == "stopped" and stopped.phases == []
    traces.add({"at": 5.0, "run": 3, "event": "started", "samples": 8})
    resumed = traces.add({"at": 6.0, "run": 3, "event": "ended", "status": "done"})
    assert resumed is not None and resumed.started == 5.0
