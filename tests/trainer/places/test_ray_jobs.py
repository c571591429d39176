"""Runs as jobs of a real Ray: two nodes on this machine. Skipped where Ray has no environment of its own."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from config.places import parse
from scripts.bench.relay.targets import free_port
from tests.harness import s3_server, tiny
from tests.trainer.places.long_runs import long_run, steps, until_step
from trainer.launch import LocalLauncher, PlaceError
from trainer.places import remote
from trainer.places.bucket import Bucket
from trainer.places.bucket_jobs import BucketJob
from trainer.places.job import RunOrder
from trainer.places.parcel import JobRecord
from trainer.places.place import PlaceSettings
from trainer.places.ray_jobs import RayPlace

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rlproxy/venvs/ray/bin/python"

needs_s3 = pytest.mark.skipif(s3_server.lacks() is not None, reason=str(s3_server.lacks()))


class Cluster:
    def __init__(self, port, process):
        self.port, self.process = port, process

    async def tell(self, line):
        await asyncio.to_thread(self.tell_now, line, b"done")

    def tell_now(self, line, answer):
        if line:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        while (output := self.process.stdout.readline()).strip() != answer:  # Ray logs there, too
            assert output, "the cluster has ended"


@pytest.fixture(scope="module")
def cluster():
    if not PYTHON.exists():
        pytest.skip("no Ray: `make test-scale` makes its environment")
    port = free_port()
    command = [PYTHON, Path(__file__).parent / "ray_cluster.py", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:
        running = Cluster(port, process)
        running.tell_now("", b"ready")
        yield running
        process.stdin.close()


@pytest.fixture
def settings(tmp_path, cluster, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} OMP_NUM_THREADS=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(remote, "PAUSES_S", (0.2,))
    address = f"ray://127.0.0.1:{cluster.port}{tmp_path / 'shared'}"
    return PlaceSettings(address, str(python), options=("--resource=trainer:1", "--num-cpus=1"))


async def attempts(settings, run):
    place = RayPlace(settings, parse(settings.address))
    return sorted(await place._attempts(JobRecord.read(run).id))


pytestmark = pytest.mark.scale


async def test_a_run_trains_on_a_node_and_its_result_comes_back(tmp_path, model, lines, settings):
    launcher, run = LocalLauncher(settings), tiny.run_folder(tmp_path / "r00001", model, lines)
    assert await launcher.refusal(str(model), sealed=False) is None
    job = await launcher.start(run, threads=1, nice=0)
    events = [event async for event in job.events()]
    assert events[-1]["status"] == "passed" and await job.wait() == 0
    await launcher.forget(run)
    assert list((tmp_path / "shared").iterdir()) == []


async def test_a_job_that_waits_for_its_node_is_found_again_and_is_one(tmp_path, model, lines, settings, cluster):
    await cluster.tell("kill node")
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await LocalLauncher(settings).start(run, threads=1, nice=0)
    await job.leave()  # as a killed rlproxy does
    job = await LocalLauncher(settings).start(run, threads=1, nice=0)
    assert job.was_under_way and [attempt.status for attempt in await attempts(settings, run)] == ["PENDING"]
    await cluster.tell("add node")
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert len(await attempts(settings, run)) == 1


async def test_a_node_that_dies_costs_an_attempt_and_no_step(tmp_path, model, lines, settings, cluster):
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    await cluster.tell("kill node")
    assert await job.wait() != 0 and not (run / "result.json").exists()
    await cluster.tell("add node")
    job = await launcher.start(run, threads=1, nice=0)
    assert not job.was_under_way
    assert [event async for event in job.events()][-1]["status"] == "passed"
    done = steps(run)
    assert sorted(set(done)) == list(range(1, 121)) and len(done) <= 121, "it began from the beginning"
    assert [attempt.number for attempt in await attempts(settings, run)] == [1, 2]


async def test_a_run_stops_at_its_next_step_and_goes_on(tmp_path, model, lines, settings):
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    await job.terminate()
    assert await job.wait() != 0
    job = await launcher.start(run, threads=1, nice=0)
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert sorted(set(steps(run))) == list(range(1, 121))


async def test_an_attempt_under_way_is_not_started_again(tmp_path, model, lines, settings):
    run = long_run(tmp_path, model, lines)
    job = await LocalLauncher(settings).start(run, threads=1, nice=0)
    place, id = RayPlace(settings, parse(settings.address)), JobRecord.read(run).id
    order = RunOrder(run, threads=1, nice=0)
    assert await asyncio.gather(*(place.start(id, order) for _ in range(3))) == [False] * 3
    with pytest.raises(PlaceError, match="answered 500"):
        await place._ask("POST", "/api/jobs/", {"submission_id": f"rlproxy-{id}-1", "entrypoint": "true"})
    await job.terminate()
    assert [attempt.number for attempt in await attempts(settings, run)] == [1]


@pytest.fixture(params=["file", pytest.param("s3", marks=needs_s3)])
def without_shared_disk(request, tmp_path, settings):
    """Nodes with credentials of their own, and a bucket."""
    url = f"file://{tmp_path / 'objects'}"
    if request.param == "s3":
        server, python = request.getfixturevalue("s3"), Path(settings.python)
        exports = "".join(f"export {name}='{value}'\n" for name, value in server.environment.items())
        python.write_text(python.read_text().replace("\n", f"\n{exports}", 1))
        url = f"s3://{s3_server.BUCKET}/home"
    return replace(settings, bucket=url)


async def test_a_run_travels_through_a_bucket_and_a_node_that_dies_costs_an_attempt(
    tmp_path, model, lines, without_shared_disk, cluster
):
    settings = without_shared_disk
    launcher, run = LocalLauncher(settings), long_run(tmp_path, model, lines, passes=120)
    assert await launcher.refusal(str(model), sealed=False) is None
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job, 10)
    bucket, id = Bucket(settings.bucket), JobRecord.read(run).id
    attempt = BucketJob.read(bucket, id).attempt
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(bucket.has, f"jobs/{id}/{attempt}/state.tar"):
            await asyncio.sleep(0.1)
    await cluster.tell("kill node")
    assert await job.wait() != 0 and not (run / "result.json").exists()
    before = steps(run)
    await cluster.tell("add node")
    job = await launcher.start(run, threads=1, nice=0)
    assert [event async for event in job.events()][-1]["status"] == "passed"
    after = steps(run)[len(before) :]
    assert set(before + after) == set(range(1, 241)) and after[0] > 1, "it began from the beginning"
    assert [each.number for each in await attempts(settings, run)] == [1, 2]
    await launcher.forget(run)
    assert not bucket.has(f"jobs/{id}/run.tar") and (tmp_path / "out" / "v0001").is_dir()


async def test_a_head_that_is_away_is_told_in_one_sentence(model, settings):
    away = replace(settings, address=f"ray://127.0.0.1:{free_port()}/nowhere")
    assert "does not answer" in (await LocalLauncher(away).refusal(str(model), sealed=False) or "")


async def test_no_key_goes_to_a_cluster(model, settings):
    launcher = LocalLauncher(replace(settings, takes_keys=True))
    assert "would lie on a disk there" in (await launcher.refusal(str(model), sealed=True) or "")
