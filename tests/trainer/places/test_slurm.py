"""Runs by sbatch, squeue and scancel: a fake cluster that really runs the scripts (scripts.fakes.slurm)."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.fakes import slurm
from tests.harness import tiny
from tests.trainer.places.long_runs import long_run, steps, until_step
from trainer.launch import LocalLauncher, PlaceError
from trainer.places import remote
from trainer.places.parcel import JobRecord
from trainer.places.place import PlaceSettings, PlaceUnreachable

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    slurm.install(tmp_path / "programs", tmp_path / "cluster")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} OMP_NUM_THREADS=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(remote, "PAUSES_S", (0.2,))
    return tmp_path / "cluster"


def settings_of(tmp_path, **changes):
    settings = PlaceSettings(f"slurm://{tmp_path / 'shared'}", str(tmp_path / "python"), options=("--partition=gpu",))
    return replace(settings, **changes)


def states(cluster):
    with slurm.jobs(cluster) as table:
        return [job["state"] for job in table.values()]


async def until_state(cluster, state):
    async with asyncio.timeout(60):
        while states(cluster)[-1] != state:
            await asyncio.sleep(0.05)


async def test_a_run_trains_in_a_job_and_its_result_comes_back(tmp_path, model, lines, cluster):
    launcher, run = LocalLauncher(settings_of(tmp_path)), tiny.run_folder(tmp_path / "r00001", model, lines)
    assert await launcher.refusal(str(model), sealed=False) is None
    job = await launcher.start(run, threads=1, nice=0)
    events = [event async for event in job.events()]
    assert events[-1]["status"] == "passed" and await job.wait() == 0
    with slurm.jobs(cluster) as table:
        (only,) = table.values()
    assert only["options"]["dependency"] == "singleton" and only["options"]["partition"] == "gpu"
    await launcher.forget(run)
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.scale
async def test_a_job_that_waits_in_the_queue_is_found_again_and_is_one(tmp_path, model, lines, cluster):
    (cluster / "held").touch()
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await LocalLauncher(settings_of(tmp_path)).start(run, threads=1, nice=0)
    await job.leave()  # as a killed rlproxy does
    job = await LocalLauncher(settings_of(tmp_path)).start(run, threads=1, nice=0)
    assert job.was_under_way and states(cluster) == ["PENDING"]
    (cluster / "held").unlink()
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert states(cluster) in (["COMPLETED"], ["RUNNING"])


async def test_a_job_in_the_queue_is_cancelled(tmp_path, model, lines, cluster):
    (cluster / "held").touch()
    launcher, run = LocalLauncher(settings_of(tmp_path)), tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await job.terminate()
    assert states(cluster) == ["CANCELLED"] and not (run / "result.json").exists()
    await launcher.forget(run)
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.scale
@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "TIMEOUT"])
async def test_what_a_cluster_does_to_a_job_costs_an_attempt_and_no_step(tmp_path, model, lines, cluster, state):
    launcher, run = LocalLauncher(settings_of(tmp_path)), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    slurm.end(cluster, f"rlproxy-{JobRecord.read(run).id}", state)
    assert await job.wait() != 0 and not (run / "result.json").exists()
    assert states(cluster) == [state]
    job = await launcher.start(run, threads=1, nice=0)
    assert not job.was_under_way
    assert [event async for event in job.events()][-1]["status"] == "passed"
    done = steps(run)
    assert sorted(set(done)) == list(range(1, 121)) and len(done) <= 121, "it began from the beginning"


@pytest.mark.scale
async def test_a_controller_that_is_away_is_waited_for(tmp_path, model, lines, cluster):
    launcher, run = LocalLauncher(settings_of(tmp_path)), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    (cluster / "down").touch()
    async for event in job.events():
        if event["event"] == "warning":
            assert "Unable to contact slurm controller" in event["message"]
            break
    with pytest.raises(PlaceUnreachable):
        await LocalLauncher(settings_of(tmp_path)).start(run, threads=1, nice=0)
    (cluster / "down").unlink()
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert steps(run) == list(range(1, 121)) and len(states(cluster)) == 1


async def test_a_job_that_slurm_refuses_is_told_in_its_words(tmp_path, model, lines, cluster):
    (cluster / "refuses").write_text("sbatch: error: invalid partition specified: gpu")
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    with pytest.raises(PlaceError, match=r"`sbatch` failed \(sbatch: error: invalid partition specified: gpu\)"):
        await LocalLauncher(settings_of(tmp_path)).start(run, threads=1, nice=0)


async def test_no_key_goes_to_a_cluster(tmp_path, model, cluster):
    launcher = LocalLauncher(settings_of(tmp_path, takes_keys=True))
    assert "would lie on a disk there" in (await launcher.refusal(str(model), sealed=True) or "")


async def test_without_slurm_one_sentence_says_so(tmp_path, model, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    problem = await LocalLauncher(settings_of(tmp_path)).refusal(str(model), sealed=False)
    assert problem is not None and "there is no `squeue` on this machine" in problem
