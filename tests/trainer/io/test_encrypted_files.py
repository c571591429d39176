"""Files of a run that only its key opens, and a run that reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import tiny
from trainer.io import encrypted_files
from trainer.io.cache import Cache
from trainer.io.encrypted_files import CHUNK, HEADER, Seal, SealError, is_sealed
from trainer.launch import LocalLauncher, verify_adapter

KEY, OTHER = bytes(range(32)), bytes(32)


@given(data=st.binary(max_size=300), size=st.integers(1, 64))
def test_what_goes_in_comes_out_whatever_the_chunks(tmp_path_factory, data, size):
    path = tmp_path_factory.mktemp("sealed") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encrypted_files, "CHUNK", size)
        Seal(KEY).write(path, data)
        assert Seal(KEY).read(path) == data
        with pytest.raises(SealError, match="another run's key"):
            Seal(OTHER).read(path)


def test_nothing_of_it_is_in_the_file_and_no_two_are_alike(tmp_path):
    for name in ("a", "b"):
        Seal(KEY).write(tmp_path / name, b"planted " * 1000)
    a, b = ((tmp_path / name).read_bytes() for name in ("a", "b"))
    assert b"planted" not in a and a != b and a.startswith(HEADER)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600 and is_sealed(tmp_path / "a")


@pytest.mark.parametrize(
    "how", ["cut", "cut at a chunk", "changed", "longer", "renamed", "salt", "header", "swapped", "empty"]
)
def test_what_is_not_as_it_was_written_is_refused(tmp_path, how):
    path = tmp_path / "samples.jsonl"
    Seal(KEY).write(path, os.urandom(2 * CHUNK + 100))
    raw = bytearray(path.read_bytes())
    start = len(HEADER) + encrypted_files.SALT_BYTES
    piece = CHUNK + encrypted_files.TAG
    if how == "cut":
        raw = raw[:-1]
    elif how == "cut at a chunk":
        raw = raw[: start + 2 * piece]
    elif how == "changed":
        raw[start + 5] ^= 1
    elif how == "longer":
        raw += b"x"
    elif how == "salt":
        raw[len(HEADER)] ^= 1
    elif how == "swapped":
        raw[start : start + 2 * piece] = raw[start + piece : start + 2 * piece] + raw[start : start + piece]
    elif how == "empty":
        raw = raw[: len(HEADER)]
    if how == "renamed":
        path = path.rename(tmp_path / "calibration.jsonl")
    else:
        path.write_bytes(raw)
    if how == "header":
        with pytest.raises(SealError, match="was given no key"):
            Seal(None).read(path)
    else:
        with pytest.raises(SealError, match="cut, or changed"):
            Seal(KEY).read(path)


def test_the_key_is_never_shown():
    assert KEY.hex() not in repr(Seal(KEY)) and "*" in repr(Seal(KEY))


def test_the_cache_is_sealed_too(tmp_path):
    for seal in (Seal(KEY), Seal(None)):
        cache = Cache(tmp_path / repr(seal), seal)
        assert cache.get("a") is None and cache.arrays("b.npz") is None
        cache.keep("a", b"words")
        cache.keep_arrays("b.npz", ids=np.arange(3), values=np.ones(2))
        found = cache.arrays("b.npz")
        assert cache.get("a") == b"words" and found is not None
        assert found["ids"].tolist() == [0, 1, 2] and found["values"].tolist() == [1.0, 1.0]
        assert [is_sealed(f) for f in cache.folder.iterdir()] == [repr(seal) != "Seal(in the clear)"] * 2


async def test_a_run_reads_its_samples_with_the_key_from_its_stdin(tmp_path, model):
    lines = [line | {"comment": "shorter", "text": "planted words"} for line in tiny.sample_lines(model)]
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"passes": 40, "learning_rate": 1e-6})
    for name in ("samples.jsonl", "calibration.jsonl"):
        Seal(KEY).write(folder / name, (folder / name).read_bytes())
    job = await LocalLauncher().start(folder, threads=1, nice=5, key=KEY)
    process = psutil.Process(job.pid)
    shown = " ".join(process.cmdline()) + repr(process.environ())
    assert KEY.hex() not in shown and repr(KEY) not in shown
    async for event in job.events():
        if event["event"] == "step":
            await job.terminate()
    assert await job.wait() == 143
    cached = list((folder / "cache").iterdir())
    assert cached and all(is_sealed(file) for file in cached)
    _nothing_in_the_clear(folder)

    for key in (None, OTHER):  # nobody's verdict on a run who cannot read it
        job = await LocalLauncher().start(folder, threads=1, nice=0, key=key)
        assert await job.wait() == 1 and not (folder / "result.json").exists()
    assert "given no key" in (folder / "trainer.log").read_text()

    job = await LocalLauncher().start(folder, threads=1, nice=0, key=KEY)  # goes on from the checkpoint
    events = [event async for event in job.events()]
    assert await job.wait() == 0 and events[-1]["status"] in ("passed", "rejected")
    if events[-1]["status"] == "passed":
        verify_adapter(tmp_path / "out" / "v0001")
    _nothing_in_the_clear(folder)


def _nothing_in_the_clear(folder: Path) -> None:
    for file in folder.rglob("*"):
        assert not file.is_file() or b"planted words" not in file.read_bytes(), file


def test_a_first_line_that_is_no_key(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": 1}))
    command = [sys.executable, "-m", "trainer", str(tmp_path), "--key-on-stdin"]
    for line in (b"", b"zz\n", b"abcd\n"):
        done = subprocess.run(command, input=line, capture_output=True, check=False)
        assert (
            done.returncode == 1 and b"not the key of a run" in done.stderr and not (tmp_path / "result.json").exists()
        )
