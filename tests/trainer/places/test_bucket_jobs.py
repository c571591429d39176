"""Runs whose files travel through a bucket, in a fake Slurm whose nodes share no disk with this machine.

Each with a local folder as the bucket, and with S3 on loopback (marked scale).
"""

import asyncio
import io
import json
import os
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from config.places import parse
from scripts.fakes import slurm
from tests.harness import s3_server, tiny
from tests.harness.s3_server import BUCKET, SECRET, Fault
from tests.trainer.places.long_runs import long_run, steps, until_step
from trainer.launch import LocalLauncher
from trainer.places import bucket_jobs, bucket_keeper, remote
from trainer.places.bucket import Bucket
from trainer.places.depot import HOLD, take
from trainer.places.parcel import JobRecord
from trainer.places.place import PlaceSettings
from trainer.places.slurm import SlurmPlace

ROOT = Path(__file__).resolve().parents[3]
needs_s3 = [pytest.mark.scale, pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    slurm.install(tmp_path / "programs", tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(remote, "PAUSES_S", (0.2,))
    return tmp_path / "cluster"


@pytest.fixture(params=["file", pytest.param("s3", marks=needs_s3)])
def settings(request, tmp_path, cluster):
    """The nodes have credentials of their own: a job's environment has none."""
    lines = [f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1"]
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        lines += [f"export {name}='{value}'" for name, value in server.environment.items()]
    python = tmp_path / "python"
    python.write_text("\n".join(["#!/bin/sh", *lines, f'exec {sys.executable} "$@"\n']))
    python.chmod(0o755)
    url = f"s3://{BUCKET}/home" if request.param == "s3" else f"file://{tmp_path / 'objects'}"
    return PlaceSettings(f"slurm://{tmp_path / 'node'}", str(python), bucket=url)


def place_of(settings):
    return SlurmPlace(settings, parse(settings.address))


def states(cluster):
    with slurm.jobs(cluster) as table:
        return [job["state"] for job in table.values()]


async def until(condition):
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


def objects(settings, run):
    """Names in the bucket of what the attempt that counts has left."""
    bucket, id = Bucket(settings.bucket), JobRecord.read(run).id
    job = bucket_jobs.BucketJob.read(bucket, id)
    return f"jobs/{id}/{job.attempt}"


def left(settings):
    """Names of objects in the bucket."""
    bucket, path = Bucket(settings.bucket), settings.bucket.partition("://")[2]
    return bucket._files.find(path)


async def finished(job):
    return [event async for event in job.events()]


async def test_a_run_trains_without_a_shared_disk_and_its_result_comes_back(tmp_path, model, lines, settings, cluster):
    launcher, run = LocalLauncher(settings), tiny.run_folder(tmp_path / "r00001", model, lines)
    assert await launcher.refusal(str(model), sealed=False) is None
    job = await launcher.start(run, threads=1, nice=0)
    assert (await finished(job))[-1]["status"] == "passed" and await job.wait() == 0
    result = json.loads((run / "result.json").read_text())
    assert result["adapter"] == str(tmp_path / "out" / "v0001") and (tmp_path / "out" / "v0001").is_dir()
    await launcher.forget(run)
    assert left(settings) == []
    await until(lambda: list((tmp_path / "node").iterdir()) == [])
    with slurm.jobs(cluster) as table:
        text = json.dumps(table)
    texts = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    assert SECRET not in text and not any(SECRET.encode() in content for content in texts)


@pytest.mark.scale
async def test_a_node_that_dies_costs_an_attempt_and_what_was_not_sent(tmp_path, model, lines, settings, cluster):
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines, passes=120)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job, 5)
    await until(lambda: Bucket(settings.bucket).has(f"{objects(settings, run)}/state.tar"))
    slurm.end(cluster, f"rlproxy-{JobRecord.read(run).id}", "NODE_FAIL")
    assert await job.wait() != 0 and not (run / "result.json").exists()
    before = steps(run)
    job = await launcher.start(run, threads=1, nice=0)
    assert not job.was_under_way
    assert (await finished(job))[-1]["status"] == "passed"
    after = steps(run)[len(before) :]
    assert set(before + after) == set(range(1, 241)) and after[0] > 1, "it began from the beginning"
    assert len(list((tmp_path / "node").iterdir())) == 1, "what a killed node leaves goes when it trains again, later"


@pytest.mark.scale
async def test_a_run_stops_at_its_next_step_and_goes_on(tmp_path, model, lines, settings, cluster):
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines, passes=120)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    await job.terminate()
    assert await job.wait() == 143 and not (run / "result.json").exists()
    job = await launcher.start(run, threads=1, nice=0)
    assert (await finished(job))[-1]["status"] == "passed"
    assert steps(run) == list(range(1, 241))


@pytest.mark.scale
async def test_the_step_of_a_stopped_run_comes_back_for_another_place(tmp_path, model, lines, settings, cluster):
    run = long_run(tmp_path, model, lines, passes=120)
    job = await LocalLauncher(settings).start(run, threads=1, nice=0)
    await until_step(job, 3)
    await job.leave()
    await LocalLauncher(replace(settings, address="local"))._elsewhere.start(remote.RunOrder(run, 1, 0))
    assert (run / "checkpoint" / "state.safetensors").is_file() and left(settings) == []


@pytest.mark.scale
async def test_an_attempt_that_was_taken_for_dead_changes_nothing(tmp_path, model, lines, settings, cluster):
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines, passes=120)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job, 3)
    lost = objects(settings, run)
    with slurm.jobs(cluster) as table:  # the controller has lost the node, which trains on
        (only,) = table.values()
        only["state"] = "NODE_FAIL"
    assert await job.wait() != 0
    job = await launcher.start(run, threads=1, nice=0)
    assert (await finished(job))[-1]["status"] == "passed" and objects(settings, run) != lost
    assert set(steps(run)) == set(range(1, 241))
    assert not Bucket(settings.bucket).has(f"{lost}/ended.json")
    await launcher.forget(run)
    await until(lambda: list((tmp_path / "node").iterdir()) == [])
    assert left(settings) == []


async def test_a_run_folder_that_the_bucket_has_broken_is_sent_again(tmp_path, model, lines, settings, cluster):
    (cluster / "held").touch()
    launcher, run = LocalLauncher(settings), tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    bucket, name = Bucket(settings.bucket), f"jobs/{JobRecord.read(run).id}/run.tar"
    bucket.write(name, bucket.read(name)[:4000])
    (cluster / "held").unlink()
    assert await job.wait() != 0 and not (run / "result.json").exists()
    job = await launcher.start(run, threads=1, nice=0)
    assert (await finished(job))[-1]["status"] == "passed"


def other_result(archive, status):
    """The same archive, whole by its own hashes, with another verdict; and one whose adapter is not its own."""
    changed = archive.replace(b'"status": "passed"', status, 1)
    assert changed != archive
    return changed


async def test_a_result_that_is_not_what_was_sent_does_not_count(tmp_path, model, lines, settings, cluster):
    launcher, run = LocalLauncher(settings), tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await job.leave()
    bucket, name = Bucket(settings.bucket), f"{objects(settings, run)}/result.tar"
    await until(lambda: states(cluster)[-1] == "COMPLETED")
    whole = bucket.read(name)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert "adapter/adapter_model.safetensors" in archive.getnames()
    for broken in (whole[: len(whole) // 2], b"", other_result(whole, b'"status": "PASSED"')):
        bucket.write(name, broken)
        job = await launcher.start(run, threads=1, nice=0)
        assert await job.wait() != 0 and job.was_under_way
        assert not (run / "result.json").exists() and not (tmp_path / "out").exists()
    bucket.remove(name)
    job = await launcher.start(run, threads=1, nice=0)
    assert await job.wait() != 0 and not (tmp_path / "out").exists()
    bucket.write(name, whole)
    job = await launcher.start(run, threads=1, nice=0)
    assert await job.wait() == 0 and (tmp_path / "out" / "v0001").is_dir()
    assert states(cluster) == ["COMPLETED"], "it was trained once"


async def test_other_weights_on_the_node_are_told_in_the_log(tmp_path, model, lines, settings, cluster):
    other = tiny.make_model(tmp_path / "other", hidden_size=32)
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await LocalLauncher(replace(settings, weights=str(other))).start(run, threads=1, nice=0)
    assert await job.wait() != 0
    assert (
        f"the weights on this node ({other}) are not those of the proxy's machine" in (run / "trainer.log").read_text()
    )


def test_what_a_killed_attempt_left_on_a_node_goes_and_other_jobs_stay(tmp_path):
    job, hour_ago = f"r00001-{'a' * 20}", time.time() - 2 * bucket_keeper.LEFT_S
    left, held, fresh = (f"{job}-{digit * 12}" for digit in "bcd")
    names = [job, left, held, fresh, f".{left}.part", "somebody-elses"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "samples.jsonl").touch()
    (tmp_path / f".{left}.tar").touch()
    with (tmp_path / held / HOLD).open("w") as hold:
        assert take(hold)
        for path in tmp_path.iterdir():
            if path.name != fresh:
                os.utime(path, (hour_ago, hour_ago))
        bucket_keeper.clear_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {job, held, fresh, "somebody-elses"}


async def test_no_key_goes_into_a_bucket(model, settings):
    launcher = LocalLauncher(replace(settings, takes_keys=True))
    assert "would lie on a disk there" in (await launcher.refusal(str(model), sealed=True) or "")
    assert "the key of a run would leave" in (await LocalLauncher(settings).refusal(str(model), sealed=True) or "")


@pytest.mark.scale
@pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))
@pytest.mark.parametrize("settings", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (403, "AccessDenied"), (404, "NoSuchBucket"), (403, "RequestTimeTooSkewed")]
)
async def test_a_bucket_that_fails_for_a_while_is_waited_for(
    tmp_path, model, lines, settings, cluster, s3, status, code
):
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines, passes=120)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    fault = Fault("*", "", status, code)
    s3.faults.append(fault)
    async for event in job.events():
        if event["event"] == "warning":
            break
    assert BUCKET in event["message"] and "The run trains on there" in event["message"]
    assert await launcher.refusal(str(model), sealed=False) is not None
    s3.faults.remove(fault)
    assert (await finished(job))[-1]["status"] == "passed"
    assert steps(run) == list(range(1, 241)) and len(states(cluster)) == 1


@pytest.mark.scale
@pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))
@pytest.mark.parametrize("settings", ["s3"], indirect=True)
async def test_a_bucket_that_keeps_nothing_gets_no_job(tmp_path, model, lines, settings, cluster, s3):
    launcher, run = LocalLauncher(settings), tiny.run_folder(tmp_path / "r00001", model, lines)
    s3.faults.append(Fault("PUT", "run.tar", lost=True))
    with pytest.raises(remote.PlaceError, match="is not what was written there"):
        await launcher.start(run, threads=1, nice=0)
    assert states(cluster) == []


@pytest.mark.scale
@pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))
@pytest.mark.parametrize("settings", ["s3"], indirect=True)
async def test_a_slow_bucket_is_a_place_that_does_not_answer(model, settings, s3, monkeypatch):
    monkeypatch.setattr(bucket_jobs, "CALL_S", 0.5)
    s3.faults.append(Fault("PUT", "", slow_s=2.0))
    assert "the bucket did not answer within" in (await LocalLauncher(settings).refusal(str(model), sealed=False) or "")
