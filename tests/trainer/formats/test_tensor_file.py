"""Heads of safetensors files that lie."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from trainer.formats.tensor_file import flaw


def write(path, head, data=b"\0" * 8, length=None):
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def tensor(shape=(2,), place=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(place)}


def test_what_the_library_writes_is_sound(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.zeros((0,), np.int64), "c": np.array(1.0, np.float16)}
    save_file(tensors, path, metadata={"format": "pt"})
    assert flaw(path) is None
    assert flaw(write(path, {"a": tensor()})) is None
    path.write_bytes(path.read_bytes()[:-1])
    assert flaw(path) is not None


@pytest.mark.parametrize(
    "head",
    [
        [], b"{", b"\xff", b"[" * 100_000, {"a": 1}, {"a": {**tensor(), "more": 1}}, {"a": tensor(dtype="PICKLE")},
        {"a": tensor(shape=(3,))}, {"a": tensor(place=(0, 9))}, {"a": tensor(place=(8, 0))},
        {"a": tensor(place=(4, 12))},
        {"a": tensor(shape=(-2,), place=(0, 8))}, {"a": tensor(shape=(2.0,))}, {"a": tensor(shape=(True, 2))},
        {"a": tensor(), "b": tensor()}, {"a": tensor(shape=(1,), place=(0, 4))},
        {"__metadata__": {"a": 1}, "a": tensor()},
        b'{"a": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "a": 1}', {"a": tensor(shape=(2**47, 2**47))},
    ],
)  # fmt: skip
def test_what_lies_is_found(tmp_path, head):
    assert flaw(write(tmp_path / "x.safetensors", head)) is not None


@pytest.mark.parametrize("length", [2**63, 2**40, 1000, 2**64 - 1])
def test_a_length_that_is_not_there_reads_nothing(tmp_path, length):
    assert "claims" in (flaw(write(tmp_path / "x.safetensors", {"a": tensor()}, length=length)) or "")


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("x") / "x.safetensors"
    path.write_bytes(raw)
    assert flaw(path) is None or len(flaw(path)) < 400
