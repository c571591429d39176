"""Real children that try to go beyond each of their limits."""

import json
import os
import stat

import pytest

from tests.harness import tiny
from trainer import child_process, launch
from trainer.formats import sidecar_files
from trainer.launch import LocalJob
from trainer.limits import ProcessLimits, in_use
from trainer.places import local

MB = 2**20


async def said(tmp_path, script, **limits):
    """What a child prints, one JSON value, and how it ended."""
    log = tmp_path / "log"
    process = await child_process.spawn(["-c", script], threads=1, log=log, limits=ProcessLimits(**limits))
    out = await process.stdout.read()
    status = await process.wait()
    assert out, log.read_text()
    return json.loads(out), status


async def test_no_more_files_than_it_may_open(tmp_path):
    script = """
import errno, json, os, resource
files = []
try:
    while True:
        files.append(open(os.devnull))
except OSError as error:
    code = error.errno
    files.clear()
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
    raised = True
except ValueError:
    raised = False
print(json.dumps([errno.errorcode[code], raised]))
"""
    assert await said(tmp_path, script, files=100) == (["EMFILE", False], 0)


async def test_no_larger_file_than_it_may_write(tmp_path):
    script = f"""
import errno, json, resource
path = {str(tmp_path / "large")!r}
try:
    with open(path, "wb") as file:
        for _ in range(10):
            file.write(bytes({MB}))
    code = 0
except OSError as error:
    code = error.errno
print(json.dumps([errno.errorcode.get(code), resource.getrlimit(resource.RLIMIT_FSIZE)]))
"""
    assert await said(tmp_path, script, file_bytes=2 * MB) == (["EFBIG", [2 * MB, 2 * MB]], 0)
    assert (tmp_path / "large").stat().st_size == 2 * MB


async def test_no_core_is_left_and_what_it_writes_is_its_owners_only(tmp_path):
    script = f"""
import json, os, resource
os.chdir({str(tmp_path)!r})
open("written", "w").close()
os.mkdir("folder")
print(json.dumps(resource.getrlimit(resource.RLIMIT_CORE)), flush=True)
os.abort()
"""
    assert await said(tmp_path, script) == ([0, 0], -6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "log", "written"]
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("written", "folder")]
    assert modes == [0o600, 0o700]


async def test_who_uses_more_memory_than_it_may_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "MEASURE_S", 0.05)
    script = (
        "import sys\n"
        "held = []\n"
        'print(\'{"event": "up"}\', flush=True)\n'
        f"while True: held.append(bytearray(b'x' * {MB}))\n"
    )
    job = LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log"), 200 * MB)
    assert [event["event"] async for event in job.events()] == ["up"]
    assert await job.wait() == -9
    assert job.exceeded.endswith("GB of memory, 0.195312 GB are allowed")


async def test_memory_of_its_children_counts_and_mapped_files_do_not(tmp_path):
    mapped = tmp_path / "weights"
    mapped.write_bytes(bytes(300 * MB))
    script = f"""
import mmap, subprocess, sys, time
file = open({str(mapped)!r}, "rb")
seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(seen[at] for at in range(0, len(seen), 4096))
more = "import time; held = b'x' * (100 * 2**20); print('{{}}', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", more], stdin=subprocess.DEVNULL)
time.sleep(60)
"""
    process = await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log")
    await process.stdout.readline()  # the child's
    try:
        assert 100 * MB < in_use(process.pid) < 200 * MB
    finally:
        os.killpg(process.pid, 9)
        await process.wait()
    assert in_use(process.pid) == 0


async def test_a_run_over_its_limits_ends_with_a_sentence(tmp_path):
    model = tiny.make_model(tmp_path / "tiny")
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model))
    command = ["-m", "trainer", str(folder), "--watch-stdin"]
    job = LocalJob(
        await child_process.spawn(command, threads=1, log=folder / "log", limits=ProcessLimits(file_bytes=12_000))
    )
    assert [e async for e in job.events()][-1]["status"] == "failed"
    assert await job.wait() == 1
    assert "File too large" in json.loads((folder / "result.json").read_text())["reason"]
    assert not (tmp_path / "out" / "v0001").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077])
async def test_a_run_within_them_leaves_an_adapter_that_a_server_can_read(tmp_path, umask):
    model = tiny.make_model(tmp_path / "tiny")
    folder = tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model))
    before = os.umask(umask)
    try:
        job = await launch.LocalLauncher().start(folder, threads=1, nice=0, max_memory_gb=16)
        assert await job.wait() == 0
    finally:
        os.umask(before)
    out = tmp_path / "out" / "v0001"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    assert [modes.pop(name, 0o600) for name in sidecar_files.FILES] == [0o600] * 2 and set(modes.values()) == {0o644}
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "result.json").stat().st_mode) == 0o600
    assert job.exceeded is None
