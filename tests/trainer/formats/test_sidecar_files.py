"""What goes with a version and is not needed: it comes back bit for bit, or not at all and says why."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from scripts.fakes.launcher import NO_TENSORS
from trainer.formats import adapter, sidecar_files
from trainer.formats.manifest import MANIFEST, sha256
from trainer.launch import verify_adapter

HEARD = {"replies": np.array([3.0, 11.0]), "means": np.arange(8, dtype=np.float32).reshape(2, 4)}


def version(folder, arrays, name=sidecar_files.CRITIC):
    def save(into):
        (into / "adapter_model.safetensors").write_bytes(NO_TENSORS)
        sidecar_files.write(into, name, arrays)

    adapter.write(folder, save, {"run": 1})
    return folder


@given(
    st.dictionaries(
        st.text("abc/_", min_size=1, max_size=8),
        arrays_of.arrays(np.float32, arrays_of.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32)),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=25, deadline=None)
def test_arrays_come_back_bit_for_bit(tmp_path_factory, arrays):
    folder = version(tmp_path_factory.mktemp("kept") / "v0001", arrays)
    found, why = sidecar_files.read(folder, sidecar_files.CRITIC)
    assert found.keys() == arrays.keys() and "kept with it" in why
    for name, array in arrays.items():
        assert found[name].shape == array.shape and found[name].tobytes() == array.tobytes()


def test_nothing_to_keep_leaves_no_file(tmp_path):
    folder = version(tmp_path / "v0001", {})
    assert not (folder / sidecar_files.CRITIC).exists()
    assert sidecar_files.read(folder, sidecar_files.CRITIC) == ({}, "the parent has none")


def deleted(folder):
    (folder / sidecar_files.CRITIC).unlink()


def of_another_version(folder):
    other = version(folder.parent / "other", {name: array + 1 for name, array in HEARD.items()})
    (other / sidecar_files.CRITIC).replace(folder / sidecar_files.CRITIC)


def half(folder):
    raw = (folder / sidecar_files.CRITIC).read_bytes()
    (folder / sidecar_files.CRITIC).write_bytes(raw[: len(raw) // 2])


def named_and_no_tensors(folder):
    (folder / sidecar_files.CRITIC).write_bytes(b"{}")
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["kept"][sidecar_files.CRITIC] = sha256(folder / sidecar_files.CRITIC)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (deleted, "the parent has none"),
        (of_another_version, "not the one that was written with it"),
        (half, "not the one that was written with it"),
        (named_and_no_tensors, "cannot be read"),
    ],
)
def test_what_is_not_as_it_was_is_left_alone_and_the_version_serves_all_the_same(tmp_path, harm, why):
    folder = version(tmp_path / "v0001", HEARD)
    harm(folder)
    found, said = sidecar_files.read(folder, sidecar_files.CRITIC)
    assert found == {} and why in said
    verify_adapter(folder)


def test_an_adapter_from_elsewhere_has_nothing_kept(tmp_path):
    (tmp_path / sidecar_files.CRITIC).write_bytes(b"whatever")
    found, said = sidecar_files.read(tmp_path, sidecar_files.CRITIC)
    assert found == {} and "cannot be read" in said
