"""Real processes on one core: the background one gets what the other leaves; one that stands still does not stay so."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.harness import tiny
from trainer import child_process, launch, low_priority
from trainer.low_priority import LOWEST, at_low_priority, control_group, scope, stand_still, standing

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="autogroups and /proc are Linux's")
BURN = "while True: pass"
SPENDS_S = 2.0  # of CPU, by the one in front


def spent(process):
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


@LINUX
@pytest.mark.parametrize("nice", [LOWEST, 0])
def test_a_busy_server_in_another_session_keeps_its_core(nice):
    if control_group("self") is not None or low_priority.AUTOGROUP.read_text().strip() != "1":
        pytest.skip("sessions are no scheduling groups here")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    burn = [sys.executable, "-c", BURN]
    server = subprocess.Popen(burn, start_new_session=True)
    run = subprocess.Popen(at_low_priority(nice, burn), start_new_session=True)
    try:
        while b"background.py" in Path(f"/proc/{run.pid}/cmdline").read_bytes():
            assert run.poll() is None
        ahead, behind_it = spent(server), spent(run)
        while spent(server) - ahead < SPENDS_S:
            assert server.poll() is run.poll() is None
        share = (spent(run) - behind_it) / SPENDS_S
        assert share < 0.1 if nice else share > 0.5
    finally:
        os.sched_setaffinity(0, before)
        for process in (server, run):
            process.kill()
            process.wait()


@LINUX
async def test_all_of_a_runs_threads_and_children_step_back(tmp_path):
    script = """
import json, os, subprocess, sys
code = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0))"
mine = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
group = open("/proc/self/autogroup").read().split()[-1] if os.path.exists("/proc/self/autogroup") else "19"
print(json.dumps({"event": "said", "child": [int(word) for word in mine], "pid": os.getpid(), "group": group}))
"""
    job = launch.LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log", nice=LOWEST))
    (said,) = [event async for event in job.events()]
    assert await job.wait() == 0
    assert said["child"] == [os.SCHED_IDLE, LOWEST, said["pid"]]
    assert said["group"] == "19" or low_priority.AUTOGROUP.read_text().strip() != "1"


def state(pid):
    return psutil.Process(pid).status()


@LINUX
async def test_a_run_that_stands_still_goes_on_when_its_parent_is_killed(tmp_path):
    model = tiny.make_model(tmp_path / "tiny")
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model), overrides={"passes": 2000})
    script = (
        "import asyncio, pathlib\n"
        "from trainer.launch import LocalLauncher\n"
        "async def main():\n"
        "    launcher = LocalLauncher()\n"
        f"    job = await launcher.start(pathlib.Path({str(folder)!r}), threads=1, nice=1)\n"
        "    async for event in job.events():\n"
        "        if event['event'] == 'step':\n"
        "            break\n"
        "    launcher.stand_still(True)\n"
        "    print(job.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    trainer = psutil.Process(int(await parent.stdout.readline()))
    while trainer.status() != psutil.STATUS_STOPPED:
        await asyncio.sleep(0.01)
    assert "stdin closed" not in (folder / "progress.jsonl").read_text()
    parent.send_signal(signal.SIGKILL)
    await parent.communicate()
    await asyncio.to_thread(psutil.wait_procs, [trainer], 60)
    assert "stdin closed" in (folder / "progress.jsonl").read_text().splitlines()[-1]


@LINUX
async def test_one_that_ends_no_longer_stands_still(tmp_path):
    """Whoever tells it to, while it is on its way to a checkpoint."""
    launcher = launch.LocalLauncher()
    script = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.5), sys.exit(3)))\n"
    script += 'print(\'{"event": "up"}\', flush=True); time.sleep(60)'
    process = await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log", nice=1)
    launcher._stoppable.add(process)
    job = launch.LocalJob(process, 0, launcher._stoppable)
    async for _ in job.events():
        break
    launcher.stand_still(True)
    while state(job.pid) != psutil.STATUS_STOPPED:
        await asyncio.sleep(0.01)
    ending = asyncio.create_task(job.terminate())
    await asyncio.sleep(0)
    launcher.stand_still(True)
    await ending
    assert await job.wait() == 3


@LINUX
def test_one_that_could_not_be_woken_yet_is_not_stopped():
    waits = [sys.executable, "-c", "input()", low_priority.__file__]  # as it looks before it has become the run
    process = subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert not stand_still(process.pid, paused=True)
        assert state(process.pid) != psutil.STATUS_STOPPED
    finally:
        process.communicate(b"\n")
    assert not stand_still(process.pid, paused=True)  # gone


# What this machine has


@pytest.fixture
def controlled(monkeypatch, tmp_path):
    """As on a desktop with systemd, where control groups share the processor out."""
    scope.cache_clear()
    monkeypatch.setattr(low_priority, "control_group", lambda pid: "/user.slice")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield tmp_path / "systemd-run"
    scope.cache_clear()


@LINUX
async def test_a_scope_of_little_weight_where_systemd_gives_one(controlled, tmp_path):
    controlled.write_text(
        f'#!/bin/sh\ncase "$*" in *CPUWeight=10*) ;; *) exit 1;; esac\n'
        f'echo "$*" >> {tmp_path}/asked\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    )
    controlled.chmod(0o755)
    assert standing(LOWEST) == ((f"nice {LOWEST}", "SCHED_IDLE", "a systemd scope with CPUWeight 10"), None)
    job = launch.LocalJob(await child_process.spawn(["-c", "print('{}')"], threads=1, log=tmp_path / "log", nice=1))
    assert [event async for event in job.events()] == [{}] and await job.wait() == 0
    assert len((tmp_path / "asked").read_text().splitlines()) == 2  # the trial, and the run


@LINUX
async def test_a_systemd_that_gives_none_keeps_no_run_from_starting(controlled, tmp_path):
    controlled.write_text("#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n")
    controlled.chmod(0o755)
    assert scope() == () and "/user.slice only" in standing(LOWEST).weak
    job = launch.LocalJob(await child_process.spawn(["-c", "print('{}')"], threads=1, log=tmp_path / "log", nice=1))
    assert [event async for event in job.events()] == [{}] and await job.wait() == 0


@pytest.mark.parametrize(
    ("shown", "weights", "group"),
    [
        ("0::/user.slice/app.slice/x.scope", ["user.slice/app.slice"], "/user.slice/app.slice"),
        ("0::/user.slice/session-1.scope", [], None),
        ("0::/", ["."], "/"),  # a container: it sees its own group as the root
        ("1:cpu,cpuacct:/\n0::/user.slice", [], None),
        ("1:cpu,cpuacct:/docker/1\n0::/", [], "/docker/1"),
        ("0::/../../elsewhere", [], None),
    ],
)
def test_which_control_group_shares_the_processor_out(monkeypatch, tmp_path, shown, weights, group):
    for place in weights:
        folder = tmp_path / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.weight").write_text("100")
    monkeypatch.setattr(low_priority, "CONTROL_GROUPS", tmp_path)
    lines = shown.splitlines()
    assert low_priority._group_in(lines) == group


def test_who_steps_back_from_nobody_says_so():
    assert standing(0).how == () and "train.nice = 0" in standing(0).weak
