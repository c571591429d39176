"""Runs over a real sshd on loopback, with keys of its own."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest

from tests.harness import sshd, tiny
from tests.trainer.places.long_runs import long_run, steps, until_step
from trainer.launch import LocalLauncher, PlaceError, verify_adapter
from trainer.places import place, remote
from trainer.places.elsewhere import OWED, open_place
from trainer.places.parcel import RECORD
from trainer.places.place import PlaceSettings, PlaceUnreachable

pytestmark = [
    pytest.mark.scale,
    pytest.mark.skipif(sshd.lacks() is not None, reason=str(sshd.lacks())),
]


@pytest.fixture
def server(tmp_path):
    server = sshd.Sshd(tmp_path / "sshd")
    server.start()
    yield server
    server.stop()


def settings_of(server, config="config", **changes):
    settings = PlaceSettings(server.where, str(server.python), options=server.options(config))
    return replace(settings, **changes)


async def test_a_run_trains_over_ssh_and_its_result_comes_back(tmp_path, model, lines, server):
    launcher = LocalLauncher(settings_of(server))
    assert await launcher.refusal(str(model), sealed=False) is None
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    assert job.pid is None and not job.was_under_way
    events = [event async for event in job.events()]
    assert events[0]["event"] == "start" and events[-1]["event"] == "end" and events[-1]["status"] == "passed"
    assert await job.wait() == 0
    assert json.loads((run / "result.json").read_text())["adapter"] == str(tmp_path / "out" / "v0001")
    assert verify_adapter(tmp_path / "out" / "v0001")["run"] == 1
    assert [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()] == events
    assert (run / RECORD).exists()
    await launcher.forget(run)
    assert list(server.jobs.iterdir()) == [] and not (run / RECORD).exists()


async def test_a_lost_connection_is_waited_for_and_the_job_is_found_again(tmp_path, model, lines, server, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.2,))
    launcher, run = LocalLauncher(settings_of(server)), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    await asyncio.to_thread(server.stop)
    warnings = [event async for event in _first(job, "warning")]
    assert "does not answer" in warnings[0]["message"]
    await asyncio.to_thread(server.start)
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert await job.wait() == 0 and steps(run) == list(range(1, 121))


async def _first(job, kind):
    async for event in job.events():
        if event["event"] == kind:
            yield event
            return


async def test_who_comes_back_finds_the_job_under_way_and_nothing_is_told_twice(tmp_path, model, lines, server):
    run = long_run(tmp_path, model, lines)
    job = await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)
    await until_step(job)
    await job.leave()  # as a killed rlproxy does
    job = await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)
    assert job.was_under_way
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert await job.wait() == 0 and steps(run) == list(range(1, 121))
    job = await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)  # after a kill before it was recorded
    assert job.was_under_way and await job.wait() == 0 and steps(run) == list(range(1, 121))


async def test_a_stop_ends_at_the_next_step_and_the_next_attempt_goes_on(tmp_path, model, lines, server):
    launcher, run = LocalLauncher(settings_of(server)), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    await job.terminate()
    assert await job.wait() == 143 and not (run / "result.json").exists()
    job = await launcher.start(run, threads=1, nice=0)
    assert not job.was_under_way
    assert [event async for event in job.events()][-1]["status"] == "passed"
    assert steps(run) == list(range(1, 121))


async def test_a_run_moves_to_this_machine_with_its_last_step(tmp_path, model, lines, server):
    run = long_run(tmp_path, model, lines)
    job = await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)
    await until_step(job, 3)
    await job.leave()
    job = await LocalLauncher(settings_of(server, address="local")).start(run, threads=1, nice=0)
    assert job.pid is not None and list(server.jobs.iterdir()) == []
    events = [event async for event in job.events()]
    assert events[-1]["status"] == "passed"
    first = next(event["step"] for event in events if event["event"] == "step")
    assert first > 3, "it began from the beginning"


async def test_a_place_that_does_not_answer_is_told_of_the_end_later(tmp_path, model, lines, server):
    launcher, run = LocalLauncher(settings_of(server)), long_run(tmp_path, model, lines)
    job = await launcher.start(run, threads=1, nice=0)
    await until_step(job)
    await job.leave()
    await asyncio.to_thread(server.stop)
    await launcher.forget(run)
    assert (run / OWED).exists() and not (run / RECORD).exists() and len(list(server.jobs.iterdir())) == 1
    await asyncio.to_thread(server.start)
    await launcher.settle(tmp_path, ())
    assert not (run / OWED).exists() and list(server.jobs.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": "config_unknown"}, "the host key of 127.0.0.1 is unknown or has changed"),
        ({"config": "config_stranger"}, "lets nobody in without a password"),
        ({"python": "/nowhere/python"}, "has no /nowhere/python: train.where_python"),
        ({"weights": "/nowhere/model"}, "the model's weights are not there"),
        ({"options": ("-o", "Nonsense=yes")}, "ssh does not take train.where_options"),
    ],
)
async def test_what_is_wrong_with_a_place_is_one_sentence(tmp_path, model, lines, server, changes, reason):
    config = changes.pop("config", "config")
    launcher = LocalLauncher(settings_of(server, config, **changes))
    problem = await launcher.refusal(str(model), sealed=False)
    assert problem is not None and reason in problem and problem.startswith("train.where = ssh://")


async def test_a_python_without_rlproxy_is_named(tmp_path, model, server):
    bare = tmp_path / "bare"
    bare.write_text('#!/bin/sh\nexec python3 -I -S "$@"\n')
    bare.chmod(0o700)
    problem = await LocalLauncher(settings_of(server, python=str(bare))).refusal(str(model), sealed=False)
    assert problem is not None and "has no rlproxy" in problem and "train.where_python" in problem


async def test_another_version_and_other_weights_are_refused(tmp_path, model, server, monkeypatch):
    other = tiny.make_model(tmp_path / "other", hidden_size=32)
    problem = await LocalLauncher(settings_of(server, weights=str(other))).refusal(str(model), sealed=False)
    assert problem is not None and "are not those of this machine" in problem
    monkeypatch.setattr(remote, "own_version", lambda: "0.0.1")
    problem = await LocalLauncher(settings_of(server)).refusal(str(model), sealed=False)
    assert problem is not None and f"it has rlproxy {place.own_version()}, and this is 0.0.1" in problem


async def test_a_key_goes_only_where_it_is_allowed_to(tmp_path, model, lines, server):
    launcher, run = LocalLauncher(settings_of(server)), tiny.run_folder(tmp_path / "r00001", model, lines)
    with pytest.raises(PlaceError, match=r"train\.where_takes_keys = true allows it"):
        await launcher.start(run, threads=1, nice=0, key=b"k" * 32)
    assert not server.jobs.exists() and not (run / RECORD).exists()
    assert "would leave this machine" in (await launcher.refusal(str(model), sealed=True) or "")
    assert await LocalLauncher(settings_of(server, takes_keys=True)).refusal(str(model), sealed=True) is None


async def test_a_host_that_is_down_can_be_tried_later(tmp_path, model, lines, server):
    await asyncio.to_thread(server.stop)
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    with pytest.raises(PlaceUnreachable, match="does not answer"):
        await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)
    await asyncio.to_thread(server.start)
    job = await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)
    assert [event async for event in job.events()][-1]["status"] == "passed"


async def test_a_greeting_of_the_shell_does_no_harm(tmp_path, model, lines, server):
    server.python.write_text(server.python.read_text().replace("#!/bin/sh\n", "#!/bin/sh\necho Welcome '{}' here\n"))
    run = tiny.run_folder(tmp_path / "r00001", model, lines)
    job = await LocalLauncher(settings_of(server)).start(run, threads=1, nice=0)
    assert [event async for event in job.events()][-1]["status"] == "passed" and await job.wait() == 0


def test_places_that_are_none():
    for text in (
        "ssh://",
        "ssh://-oProxyCommand=x/",
        "ssh://a b/",
        "ftp://host/x",
        "ssh://u:p@h",
        "ssh://h:x/",
        "there",
    ):
        with contextlib.suppress(ValueError):
            open_place(PlaceSettings(text))
            pytest.fail(text)
