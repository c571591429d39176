"""A sweep finds a rate that does no harm, leaves the policy as it was, and is kept with the version."""

import io
import json

import pytest

from tests.harness import tiny
from trainer import loop
from trainer.io.progress import Progress, Stop
from trainer.run import rate_finder


def go(path, model, lines, **spec):
    out = io.StringIO()
    folder = tiny.run_folder(path / "run", model, lines, **spec)
    order = json.loads((folder / "run.json").read_bytes())
    del order["overrides"]["learning_rate"]  # which would be the person's own
    (folder / "run.json").write_text(json.dumps(order))
    with Progress(folder, out) as progress:
        result = loop.run(folder, progress, Stop())
    return result, [json.loads(line) for line in out.getvalue().splitlines()]


def rate(events):
    return [e for e in events if e["event"] == "choice" and e["name"] == "learning_rate"][-1]


def swept(events):
    return [e for e in events if e["event"] == "tune"]


def test_the_highest_rate_without_harm_trains_and_stays_with_the_version(tmp_path, model, monkeypatch):
    monkeypatch.setattr(rate_finder, "HARM", 2e-3)  # of so small a model
    lines = tiny.sample_lines(model, 12)
    result, events = go(tmp_path / "a", model, lines, tune=True)
    assert result["status"] == "passed", result["reason"]
    tried = swept(events)
    assert [e["rate"] for e in tried] == sorted(e["rate"] for e in tried) and 1 < len(tried) < len(rate_finder.FACTORS)
    assert all(e["moved"] <= 2e-3 for e in tried[:-1]) and tried[-1]["moved"] > 2e-3
    assert rate(events)["value"] == tried[-2]["rate"] and "sweep of 2 steps" in rate(events)["why"]
    manifest = json.loads((tmp_path / "a/out/v0001/manifest.json").read_bytes())
    assert (
        manifest["tuned"]
        == pytest.approx(manifest["preset"]["learning_rate"])
        == pytest.approx(tried[-2]["rate"], 0.01)
    )

    adapter = tmp_path / "a/out/v0001"
    fresh = tiny.sample_lines(model, 12, version=1, adapter=adapter, seed=5)
    again = {"version": 2, "parent": 1, "adapters": {"1": str(adapter)}, "out": str(tmp_path / "v0002")}
    result, events = go(tmp_path / "b", model, fresh, tune=True, **again)
    assert result["status"] == "passed" and not swept(events)
    assert any("for a version before" in e["why"] for e in events if e["event"] == "choice")
    assert json.loads((tmp_path / "v0002/manifest.json").read_bytes())["tuned"] == manifest["tuned"]


def test_a_sweep_leaves_the_run_where_it_began(tmp_path, model, monkeypatch):
    """Where every rate goes too far it is the lowest, and the steps are those of a run that was given that rate."""
    monkeypatch.setattr(rate_finder, "HARM", 0.0)
    lines = tiny.sample_lines(model, 12)
    result, events = go(tmp_path / "a", model, lines, tune=True)
    assert len(swept(events)) == 1 and "went too far" in rate(events)["why"]
    given = rate(events)["value"]
    folder = tiny.run_folder(tmp_path / "c/run", model, lines, overrides={"learning_rate": given})
    with Progress(folder, io.StringIO()) as progress:
        straight = loop.run(folder, progress, Stop())
    assert straight["metrics"]["loss"] == pytest.approx(result["metrics"]["loss"], rel=1e-6)


def test_a_rate_of_ones_own_is_not_looked_for(tmp_path, model):
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model, 12), tune=True)
    out = io.StringIO()
    with Progress(folder, out) as progress:
        loop.run(folder, progress, Stop())
    assert '"tune"' not in out.getvalue()
