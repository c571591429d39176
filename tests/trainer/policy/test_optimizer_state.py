"""The optimiser's state beside a version: read back exactly, or left alone with the reason."""

import json

import numpy as np
import pytest

from scripts.fakes.launcher import NO_TENSORS
from trainer.formats import adapter, sidecar_files
from trainer.formats.manifest import sha256
from trainer.policy import optimizer_state

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
        sidecar_files.write(folder, sidecar_files.OPTIMISER, STATE)

    manifest = adapter.write(tmp_path / "v0001", save, {"run": 1})
    assert list(manifest["files"]) == ["adapter_model.safetensors"]
    assert list(manifest["kept"]) == [sidecar_files.OPTIMISER]
    return tmp_path / "v0001"


def test_it_comes_back_as_it_was(version):
    state, why = optimizer_state.read(version, ADAPTER)
    assert state.keys() == STATE.keys()
    for key, value in STATE.items():
        np.testing.assert_array_equal(state[key], value)
    assert "kept" in why


def deleted(folder):
    (folder / sidecar_files.OPTIMISER).unlink()


def changed(folder):
    raw = bytearray((folder / sidecar_files.OPTIMISER).read_bytes())
    raw[-1] ^= 1
    (folder / sidecar_files.OPTIMISER).write_bytes(bytes(raw))


def garbage(folder):
    (folder / sidecar_files.OPTIMISER).write_bytes(b"no tensors")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["kept"][sidecar_files.OPTIMISER] = sha256(folder / sidecar_files.OPTIMISER)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "why"), [(deleted, "has none"), (changed, "not the one"), (garbage, "cannot be read")]
)
def test_what_is_not_whole_is_left_alone(version, harm, why):
    harm(version)
    state, reason = optimizer_state.read(version, ADAPTER)
    assert state == {}
    assert why in reason


@pytest.mark.parametrize("other", [{"b": np.ones((2, 3))}, {"a": np.ones((3, 3))}])
def test_the_state_of_another_adapter_does_not_fit(version, other):
    state, reason = optimizer_state.read(version, other)
    assert state == {}
    assert "another framework or shape" in reason
