"""Threads follow the cores that are idle. Real programs keep real cores busy; torch is asked how many it uses."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import presets
from trainer import idle_cores
from trainer.formats.weights import Weights
from trainer.idle_cores import CoreTimes, IdleCores, fitting_threads, most_threads, openmp_environment, read_core_times
from trainer.lessons.batch import score
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy
from trainer.serve.__main__ import load_model

START = CoreTimes(100.0, 50.0, 20.0)


def after(seconds: float, *, own: float, others: float) -> CoreTimes:
    return CoreTimes(START.clock + seconds, START.busy + own + others, START.process + own)


@pytest.mark.parametrize(
    ("cores", "most", "others", "threads"),
    [
        (2, 2, 0.0, 2),
        (2, 2, 0.8, 2),  # of two seconds: less than half a core
        (2, 2, 1.2, 1),
        (2, 2, 4.0, 1),
        (8, 8, 5.0, 6),  # two and a half cores, rounded
        (16, 8, 4.0, 8),  # two threads a core: eight are all that help
        (16, 2, 0.0, 2),  # a container with the share of two
    ],
)
def test_threads_are_the_cores_that_others_leave(cores: int, most: int, others: float, threads: int) -> None:
    assert fitting_threads(START, after(2, own=2.5, others=others), cores=cores, most=most) == threads


@given(own=st.floats(0, 64), others=st.floats(0, 64), cores=st.integers(1, 64), most=st.integers(1, 64))
def test_its_own_work_takes_no_thread_away(own: float, others: float, cores: int, most: int) -> None:
    threads = fitting_threads(START, after(1, own=own, others=others), cores=cores, most=most)
    assert 1 <= threads <= most
    assert (
        abs(threads - fitting_threads(START, after(1, own=0, others=others), cores=cores, most=most)) <= 1
    )  # rounding


class Row(NamedTuple):
    user: float
    idle: float


@pytest.mark.parametrize(
    ("allowed", "rows", "busy"),
    [
        ({1}, [Row(5, 0), Row(7, 0)], 7),
        ({0, 2}, [Row(5, 0), Row(7, 0)], 12),  # the second row is of core 2: core 1 is offline
        ({4, 5}, [Row(5, 0), Row(7, 0)], 12),  # a container that shows its own cores alone
    ],
)
def test_cores_that_are_not_ours_are_not_read(
    allowed: set[int], rows: list[Row], busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: rows)
    assert read_core_times().busy == busy


@pytest.mark.parametrize(("share", "threads"), [(4, 2), (1, 1), (8, 8)])
def test_a_container_with_a_share_of_processors_uses_half_of_it(
    share: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr(idle_cores, "processors", lambda: share)
    assert most_threads() == threads


def test_no_more_than_one_look_a_second() -> None:
    reads: list[CoreTimes] = []

    def read() -> CoreTimes:
        reads.append(read_core_times())
        return reads[-1]

    cores = IdleCores(1, read)
    for _ in range(100):
        cores.look()
    assert len(reads) == 1


@pytest.fixture
def busy_cores() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which cores are ours")
def test_beside_programs_that_keep_every_core_busy_there_is_one_thread(busy_cores: None) -> None:
    cores = IdleCores(most_threads(), read_core_times)
    time.sleep(idle_cores.LOOK_S)
    assert cores.look() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="torch comes with GNU's OpenMP on Linux alone")
def test_a_thread_of_torch_spins_for_a_moment_and_then_sleeps() -> None:
    """OpenMP itself says what it has read."""
    code = "import torch; print(torch.get_num_threads()); print(torch.__config__.parallel_info())"
    environment = os.environ | openmp_environment(1) | {"OMP_DISPLAY_ENV": "VERBOSE"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.startswith("1\n") and "OMP_NUM_THREADS : 1" in output.stdout
    assert f"GOMP_SPINCOUNT = '{idle_cores.SPINS}'" in output.stderr


def test_each_pass_has_the_threads_that_there_are_cores_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_cores, "LOOK_S", 0.0)
    readings = iter([START, after(1, own=1, others=0), after(2, own=2, others=1000)])
    torch.set_num_threads(1)
    layer, row = torch.nn.Linear(2, 2), torch.ones(1, 2)
    idle_cores.use_idle_cores(layer, lambda: next(readings))
    assert torch.get_num_threads() == 1
    layer(row)
    assert torch.get_num_threads() == most_threads()
    layer(row)
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which cores are ours")
@pytest.mark.parametrize("act", ["score", "generate", "serve"])
def test_a_policy_and_a_server_follow_idle_cores(model: Path, busy_cores: None, act: str) -> None:
    if act == "serve":
        served, _ = load_model(Weights(model, "a test"), threads=0)
    else:
        policy = TorchPolicy(model, presets.resolve("balanced", {}), parent=None, threads=0, seed=0, compute="float32")
    torch.set_num_threads(3)
    time.sleep(idle_cores.LOOK_S)
    if act == "serve":
        served(torch.tensor([[5, 6]]))
    elif act == "score":
        score(policy, [Tokens((5, 6), (7, 8))])
    else:
        policy.generate([(5, 6)], max_tokens=1, temperature=1.0, seed=0)
    assert torch.get_num_threads() == 1


def test_threads_that_were_set_stay(model: Path) -> None:
    policy = TorchPolicy(model, presets.resolve("balanced", {}), parent=None, threads=1, seed=0, compute="float32")
    score(policy, [Tokens((5, 6), (7, 8))])
    assert torch.get_num_threads() == 1
