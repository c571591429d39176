"""Real child processes: a run from start to end, one that is stopped and goes on, one whose parent dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import tiny
from tests.trainer.formats.test_gguf import make_adapter
from tests.trainer.formats.test_merge_gguf import layers_of, make_base
from trainer import child_process, launch
from trainer.idle_cores import SPINS
from trainer.io.run_folder import lock
from trainer.launch import LaunchError, LocalLauncher, verify_adapter
from trainer.places import local


async def test_a_run_that_is_stopped_goes_on_and_ends(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"passes": 40, "learning_rate": 1e-6})
    job = await LocalLauncher().start(folder, threads=1, nice=5)
    seen = []
    async for event in job.events():
        seen.append(event["event"])
        if event["event"] == "start":
            assert os.getpriority(os.PRIO_PROCESS, job.pid) == 5
        if event["event"] == "step":
            await job.terminate()
    assert await job.wait() == 143
    assert seen[0] == "start"
    assert seen[-1] == "stopped"
    assert not (folder / "result.json").exists()
    assert (folder / "trainer.log").exists()

    order = json.loads((folder / "run.json").read_text())
    job = await LocalLauncher().start(folder, threads=1, nice=0)
    events = [event async for event in job.events()]
    assert await job.wait() == 0
    assert events[-1]["event"] == "end"
    assert events[-1]["status"] == "passed"
    assert verify_adapter(tmp_path / "out" / "v0001")["run"] == order["run"]
    steps = [json.loads(x) for x in (folder / "progress.jsonl").read_text().splitlines() if '"step"' in x]
    assert [s["step"] for s in steps if s["event"] == "step"] == list(range(1, 81))  # none twice


async def test_one_trainer_a_folder(tmp_path):
    with lock(tmp_path):
        job = await LocalLauncher().start(tmp_path, threads=1, nice=0)
        assert [event async for event in job.events()] == []
        assert await job.wait() == 75
    assert "another trainer" in (tmp_path / "trainer.log").read_text()


async def test_no_orphan_outlives_its_parent(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"passes": 2000})
    script = (
        "import asyncio, pathlib, sys\n"
        "from trainer.launch import LocalLauncher\n"
        "async def main():\n"
        f"    job = await LocalLauncher().start(pathlib.Path({str(folder)!r}), threads=1, nice=0)\n"
        "    async for event in job.events():\n"
        "        print(event['event'], job.pid, flush=True)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    name = b""
    while name != b"step":
        name, pid = (await parent.stdout.readline()).split()
    parent.send_signal(signal.SIGKILL)
    await parent.communicate()
    for _ in range(200):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the trainer lives on")
    assert "stdin closed" in (folder / "progress.jsonl").read_text().splitlines()[-1]


async def test_a_broken_folder_ends_with_status_one(tmp_path):
    (tmp_path / "run.json").write_text("{")
    job = await LocalLauncher().start(tmp_path, threads=1, nice=0)
    events = [event async for event in job.events()]
    assert await job.wait() == 1
    assert events[-1]["status"] == "failed"
    assert "not JSON" in json.loads((tmp_path / "result.json").read_text())["reason"]


async def test_events_survive_garbage_and_very_long_lines(monkeypatch, tmp_path):
    script = (
        "import json; print('not json'); print('[1]'); print('x' * 3_000_000);"
        "print(json.dumps({'event': 'end', 'pad': 'y' * 200_000}))"
    )
    process = await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log")
    job = launch.LocalJob(process)
    assert [e["event"] async for e in job.events()] == ["end"]
    assert [e async for e in job.events()] == []
    assert await job.wait() == 0


async def test_events_that_nobody_reads_do_not_fill_the_memory(tmp_path):
    """Own code of a run prints into the same pipe; the end of a run is among the newest."""
    script = "import json\nfor n in range(3000): print(json.dumps({'event': 'x', 'n': n, 'pad': 'y' * 1000}))"
    job = launch.LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log"))
    assert await job.wait() == 0
    numbers = [event["n"] async for event in job.events()]
    assert numbers == list(range(3000 - local.MOST_EVENTS, 3000))


async def test_who_does_not_listen_to_sigterm_is_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    script = (
        'import signal, time; signal.signal(15, signal.SIG_IGN);print(\'{"event": "up"}\', flush=True); time.sleep(60)'
    )
    job = launch.LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log"))
    assert [e async for e in _first(job)] == ["up"]
    await job.terminate()
    assert await job.wait() == -9


async def test_who_stands_still_is_woken_to_end_in_order(tmp_path):
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3))\n"
    script += 'print(\'{"event": "up"}\', flush=True); time.sleep(60)'
    job = launch.LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log"))
    assert [e async for e in _first(job)] == ["up"]
    os.kill(job.pid, signal.SIGSTOP)
    await job.terminate()
    assert await job.wait() == 3


async def test_who_hangs_is_killed(monkeypatch, tmp_path):
    """Its handler of SIGTERM never runs."""
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    script = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {15})\n"
    script += 'print(\'{"event": "up"}\', flush=True); time.sleep(60)'
    job = launch.LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log"))
    assert [e async for e in _first(job)] == ["up"]
    await job.terminate()
    assert await job.wait() == -9


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="the kernel's choice is Linux's")
async def test_a_trainer_is_the_first_to_go_when_memory_runs_out(tmp_path):
    script = "import json; print(json.dumps({'event': open('/proc/self/oom_score_adj').read().strip()}))"
    job = launch.LocalJob(await child_process.spawn(["-c", script], threads=1, log=tmp_path / "log", nice=5))
    assert [e["event"] async for e in job.events()] == ["800"] and await job.wait() == 0
    assert int(Path("/proc/self/oom_score_adj").read_text()) < 800


async def _first(job):
    async for event in job.events():
        yield event["event"]
        return


async def test_a_server_that_does_not_come_up_says_why(tmp_path):
    with pytest.raises(LaunchError, match=r"backend\.log"):
        await LocalLauncher().start_server(
            str(tmp_path / "nothing"), "m", key="k", log=tmp_path / "logs" / "backend.log"
        )


def test_children_get_no_secrets_and_a_thread_budget(monkeypatch):
    for name in ("RLPROXY_SERVER__KEY", "OPENAI_API_KEY", "HF_TOKEN", "MY_password", "AWS_SECRET_X"):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("SSH_AUTH_SOCK", "hush")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hush@host/db")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:needed@proxy")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    found = child_process.child_environment(3)
    assert not any("hush" in value for value in found.values())
    assert found["HTTPS_PROXY"] == "http://me:needed@proxy"  # weights are downloaded through it
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert (found["OMP_WAIT_POLICY"], found["GOMP_SPINCOUNT"]) == ("PASSIVE", str(SPINS))


def test_what_both_begin_with_is_no_more_than_the_cores(monkeypatch):
    for cores, budgets in ((1, (1, 1)), (2, (1, 1)), (3, (2, 1)), (8, (4, 4))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert launch.default_threads() == budgets


def test_the_proxy_side_brings_no_torch():
    code = "import sys, trainer.launch; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_missing_is_named(monkeypatch):
    assert launch.available() is None
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name == "peft" else object())
    assert "need peft" in launch.available()
    assert "rlproxy[train]" in LocalLauncher().available()


def test_a_mac_needs_mlx_lm_and_no_torch(monkeypatch):
    """As `rlproxy init` installs it there: the mlx extra alone. The built-in backend is torch's all the same."""
    monkeypatch.setattr(launch.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(launch.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name in ("torch", "peft", "mlx_lm") else object())
    assert launch.available().startswith("training on a Mac needs mlx-lm") and "rlproxy[mlx]" in launch.available()
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name in ("torch", "peft") else object())
    assert launch.available() is None and LocalLauncher().available() is None
    assert "need torch, peft" in LocalLauncher().available(serves=True)


async def test_a_fused_model_is_written_by_a_child(tmp_path):
    base = make_base(tmp_path / "base.gguf", "llama")
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    await LocalLauncher().fuse(tmp_path / "adapter", base, tmp_path / "out" / "v1.gguf")
    assert (tmp_path / "out" / "v1.gguf").stat().st_size == base.stat().st_size
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(LaunchError, match=r"was not fused with its model: .*adapter_model\.safetensors is missing"):
        await LocalLauncher().fuse(tmp_path / "adapter", base, tmp_path / "out" / "v2.gguf")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["v1.gguf"]


async def test_a_converter_that_fails_says_why(tmp_path):
    for convert in (LocalLauncher().mlx, lambda adapter, out: LocalLauncher().gguf(adapter, None, out)):
        with pytest.raises(LaunchError, match=r"was not converted (to GGUF|for mlx-lm): .+"):
            await convert(tmp_path / "nothing", tmp_path / "out")
        assert not (tmp_path / "out").exists()


async def test_an_adapter_becomes_a_folder_of_mlx(tmp_path):
    make_adapter(tmp_path / "peft", {"model.layers.0.self_attn.q_proj": (8, 8)})
    await LocalLauncher().mlx(tmp_path / "peft", tmp_path / "deep" / "mlx")
    found = sorted(path.name for path in (tmp_path / "deep" / "mlx").iterdir())
    assert found == ["adapter_config.json", "adapters.safetensors"]


async def test_the_rank_that_a_run_would_choose(tmp_path, model):
    launcher = LocalLauncher()
    assert await launcher.rank(str(model), "balanced", {}) == 16
    assert await launcher.rank(str(model), "balanced", {"rank": 4}) == 4
    mixture = tmp_path / "mixture"
    mixture.mkdir()
    config = json.loads((model / "config.json").read_text()) | {"num_local_experts": 8, "num_experts_per_tok": 2}
    (mixture / "config.json").write_text(json.dumps(config))
    (mixture / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert await launcher.rank(str(mixture), "balanced", {}) == 24
    for unknown in ("/nowhere", "owner/not-on-this-machine", "no/hub/id"):
        assert await launcher.rank(unknown, "balanced", {}) == 16
