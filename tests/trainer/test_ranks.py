"""A run whose model several processes hold together: equal to that of one process, and ended with it.

The processes compute on the CPU by gloo. On GPUs nothing of this has run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.harness import tiny
from tests.trainer.runs import of, tensors
from trainer.child_process import python_environment

pytestmark = pytest.mark.timeout(1200)  # three processes load torch, on whatever else the machine does

ONE = [sys.executable, "-P", "-m", "trainer"]
TORCHRUN = [
    sys.executable,
    "-P",
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "trainer",
]


@pytest.fixture(scope="module", params=[True, False], ids=["tied, in bf16", "untied"])
def sound(request, tmp_path_factory):
    """A model, and what people said of its answers."""
    folder = tmp_path_factory.mktemp("ranks")
    stored = torch.bfloat16 if request.param else torch.float32
    model = tiny.make_model(folder / "model", stored=stored, tie_word_embeddings=request.param, num_hidden_layers=3)
    return model, tiny.sample_lines(model)


def run(folder: Path, command: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result of a run in processes of its own, and its events."""
    done = subprocess.run(
        [*command, str(folder)], env=python_environment(1), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    return json.loads((folder / "result.json").read_text()), events


def make(path: Path, sound: Any, **spec: Any) -> Path:
    model, lines = sound
    out = str(path / "v0001")
    return tiny.run_folder(path / "run", model, lines, compute="float32", out=out, **spec)


def assert_equal(one: tuple[Any, Any], several: tuple[Any, Any]) -> None:
    """Losses, what the gate measured, and the adapter within 1e-5 in float32."""
    (result, events), (other_result, other_events) = one, several
    assert result["status"] == other_result["status"] == "passed", other_result
    steps, other_steps = of(events, "step"), of(other_events, "step")
    assert len(steps) == len(other_steps) > 3
    for name in ("loss", "kl_ref", "kl_old", "grad_norm"):
        np.testing.assert_allclose([s[name] for s in steps], [s[name] for s in other_steps], rtol=0, atol=1e-5)
    for name, check in result["gate"].items():
        assert other_result["gate"][name]["value"] == pytest.approx(check["value"], abs=1e-5), name
    adapter, other_adapter = tensors(Path(result["adapter"])), tensors(Path(other_result["adapter"]))
    assert adapter.keys() == other_adapter.keys()
    for name, values in adapter.items():
        np.testing.assert_allclose(values, other_adapter[name], rtol=0, atol=1e-5)


def test_two_processes_make_the_run_of_one(sound, tmp_path):
    one = run(make(tmp_path / "one", sound), ONE)
    several = run(make(tmp_path / "two", sound, gpus=2), ONE)
    assert_equal(one, several)
    (chosen,) = (event for event in of(several[1], "choice") if event["name"] == "gpus")
    assert chosen["value"] == 2 and "3 layers" in chosen["why"]
    assert not (tmp_path / "two/run/ranks").exists()


@pytest.mark.scale
def test_torchrun_makes_the_run_of_one(sound, tmp_path):
    assert_equal(run(make(tmp_path / "one", sound), ONE), run(make(tmp_path / "two", sound), TORCHRUN))


@pytest.mark.scale
def test_a_second_run_goes_on_from_the_first_one(sound, tmp_path):
    runs = []
    for name, gpus in (("one", 1), ("two", 2)):
        first, _ = run(make(tmp_path / name / "first", sound, gpus=gpus), ONE)
        again = {"version": 2, "parent": 1, "adapters": {"1": first["adapter"]}}
        runs.append(run(make(tmp_path / name / "second", sound, gpus=gpus, **again), ONE))
    assert_equal(*runs)


def held_layers(process: subprocess.Popen[str]) -> psutil.Process:
    """The process that holds layers for this one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for child in psutil.Process(process.pid).children():
            if "trainer.ranks" in child.cmdline():
                return child
        time.sleep(0.05)
    raise AssertionError("no process holds layers")


@pytest.mark.scale
@pytest.mark.parametrize("killed", ["the run", "a holder"])
def test_no_process_outlives_another(sound, tmp_path, killed):
    """And the next attempt makes the run."""
    folder = make(tmp_path, sound, gpus=2)
    process = subprocess.Popen(
        [*ONE, str(folder)], env=python_environment(1), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    holder = held_layers(process)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "step":
            break
    os.kill(process.pid if killed == "the run" else holder.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    psutil.wait_procs([holder], 60)
    assert not holder.is_running()
    result, events = run(folder, ONE)
    assert result["status"] == "passed" and any(event["name"] == "resume" for event in of(events, "choice"))


@pytest.mark.scale
def test_a_stop_ends_all_at_a_step(sound, tmp_path):
    folder = make(tmp_path, sound, gpus=2)
    process = subprocess.Popen([*ONE, str(folder)], env=python_environment(1), stdout=subprocess.PIPE, text=True)
    holder = held_layers(process)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "step":
            break
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and json.loads(out.splitlines()[-1])["event"] == "stopped"
    assert not holder.is_running()


def test_what_does_not_go_together_is_said(sound, tmp_path):
    folder = make(tmp_path, sound, gpus=2, load_in_4bit=True)
    done = subprocess.run([*ONE, str(folder)], env=python_environment(1), capture_output=True, timeout=500)
    result = json.loads((folder / "result.json").read_text())
    assert done.returncode == 1 and result["status"] == "failed"
    assert "train.load_in_4bit" in result["reason"]
