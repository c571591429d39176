"""The optimiser's state beside a version: read back exactly, or left alone with the reason."""

import json

import numpy as np
import pytest

from tests.fakes.launcher import NO_TENSORS
from trainer import adapter, kept, momentum
from trainer.manifest import sha256

ADAPTER = {"a": np.ones((2, 3), np.float32)}
STATE = {
    "exp_avg/a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "exp_avg_sq/a": np.ones((2, 3), np.float32),
    "step/a": np.array(4.0, np.float32),
}


@pytest.fixture
def version(tmp_path):
    def save(folder):
        (folder / "adapter_model.safetensors").write_bytes(NO_TENSORS)
        kept.write(folder, kept.OPTIMISER, STATE)

    manifest = adapter.write(tmp_path / "v0001", save, {"run": 1})
    assert list(manifest["files"]) == ["adapter_model.safetensors"]
    assert list(manifest["kept"]) == [kept.OPTIMISER]
    return tmp_path / "v0001"


def test_it_comes_back_as_it_was(version):
    state, why = momentum.read(version, ADAPTER)
    assert state.keys() == STATE.keys()
    for key, value in STATE.items():
        np.testing.assert_array_equal(state[key], value)
    assert "kept" in why


def deleted(folder):
    (folder / kept.OPTIMISER).unlink()


def changed(folder):
    raw = bytearray((folder / kept.OPTIMISER).read_bytes())
    raw[-1] ^= 1
    (folder / kept.OPTIMISER).write_bytes(bytes(raw))


def garbage(folder):
    (folder / kept.OPTIMISER).write_bytes(b"no tensors")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["kept"][kept.OPTIMISER] = sha256(folder / kept.OPTIMISER)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "why"), [(deleted, "has none"), (changed, "not the one"), (garbage, "cannot be read")]
)
def test_what_is_not_whole_is_left_alone(version, harm, why):
    harm(version)
    state, reason = momentum.read(version, ADAPTER)
    assert state == {}
    assert why in reason


@pytest.mark.parametrize("other", [{"b": np.ones((2, 3))}, {"a": np.ones((3, 3))}])
def test_the_state_of_another_adapter_does_not_fit(version, other):
    state, reason = momentum.read(version, other)
    assert state == {}
    assert "another framework or shape" in reason
