from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.training.system_load import LEAST_S, WINDOW_S, CpuTime, Machine, MachineUse, gpu_use, other_cpu_use


def test_the_use_of_others_is_what_is_not_ours() -> None:
    assert other_cpu_use(deque([CpuTime(0, 100, 50), CpuTime(10, 115, 60)]), 2) == 25.0  # 5 of 20 s
    assert other_cpu_use(deque([CpuTime(0, 0, 0), CpuTime(10, 10, 12)]), 2) == 0.0  # clocks of processes tick coarsely


def test_a_moment_is_no_measurement() -> None:
    assert other_cpu_use(deque([CpuTime(0, 0, 0)]), 1) is None
    assert other_cpu_use(deque([CpuTime(0, 0, 0), CpuTime(LEAST_S / 2, 1, 0)]), 1) is None


def test_what_was_more_than_a_minute_ago_is_forgotten() -> None:
    spent = deque([CpuTime(0, 0, 0)])
    for at in range(10, 200, 10):
        spent.append(CpuTime(at, 10.0 if at <= 60 else 10.0 + (at - 60) / 2, 0))
        use = other_cpu_use(spent, 1)
    assert use == 50.0
    assert spent[-1].timestamp - spent[0].timestamp == WINDOW_S and len(spent) == 7


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=30))
def test_a_share_is_a_share(steps: list[tuple[float, float, float]]) -> None:
    spent = deque([CpuTime(0, 0, 0)])
    for seconds, theirs, ours in steps:
        last = spent[-1]
        spent.append(CpuTime(last.timestamp + seconds, last.busy + theirs + ours, last.ours + ours))
        use = other_cpu_use(spent, 4)
        assert use is None or 0 <= use <= 100


def test_a_process_of_ours_is_not_counted() -> None:
    """Real processes: a child that burns CPU is ours, also after it has ended."""
    machine = Machine(cpu=True, gpu=False)
    assert machine.look(0.0).cpu_percent is None
    burn = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    machine.look(10.0)
    child.communicate(b"\n")
    machine.look(20.0)
    ours = [spent.ours for spent in machine._spent]
    assert ours[1] - ours[0] >= 0.25
    assert ours == sorted(ours)


def test_memory_that_the_trainer_holds_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=3 * 2**30, total=8 * 2**30))
    machine = Machine(cpu=False, gpu=False)
    assert machine.look(0.0) == MachineUse(3.0)
    assert 3.01 < machine.look(0.0, os.getpid()).free_gb < 10
    assert machine.look(0.0, 2**22 + 1) == MachineUse(3.0)  # it has just ended


@pytest.mark.parametrize(
    ("apps", "ours", "trainer", "found"),
    [
        ("", set(), set(), (35.0, 20.0)),
        ("11, 1024\n12, 2048\n", set(), set(), (35.0, 20.0)),
        ("11, 1024\n12, 2048\n", {12}, set(), (None, 20.0)),
        ("11, 1024\n12, 2048\n", {11, 12}, {12}, (None, 22.0)),
        ("12, [N/A]\n", {12}, {12}, (None, 20.0)),
    ],
)
def test_what_nvidia_smi_says(apps: str, ours: set[int], trainer: set[int], found: tuple[float | None, float]) -> None:
    assert gpu_use("35, 20480\n", apps, ours, trainer) == found


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program of that name, as it prints on a machine with one GPU."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_gpu_is_asked_for_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    script = f'echo "$@" >> {tmp_path}/asked\ncase "$2" in *query-gpu*) echo "70, 4096";; esac'
    smi(tmp_path, monkeypatch, script)
    use = Machine(cpu=False, gpu=True).look(0.0)
    assert (use.gpu_percent, use.gpu_free_gb, use.problem) == (70.0, 4.0, None)
    assert (tmp_path / "asked").read_text().startswith("--id=2 --query-gpu=utilization.gpu,memory.free ")


@pytest.mark.parametrize("script", ["exit 9", "echo no devices were found", "true"])
def test_an_nvidia_smi_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    smi(tmp_path, monkeypatch, script)
    use = Machine(cpu=False, gpu=True).look(0.0)
    assert use.gpu_percent is None and "nvidia-smi does not say" in (use.problem or "")


def test_without_nvidia_smi_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    use = Machine(cpu=False, gpu=True).look(0.0)
    assert use.gpu_percent is None and use.gpu_free_gb is None and use.problem is None
