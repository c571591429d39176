import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from scripts.fakes.launcher import NO_TENSORS
from trainer.formats import adapter
from trainer.launch import AdapterError, verify_adapter

ABOUT = {"run": 1, "parent": 0, "samples": ["rt-1"], "metrics": {"loss": 0.5}}


def save(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(NO_TENSORS)
    (folder / "adapter_config.json").write_bytes(b"{}")


def test_what_is_written_verifies(tmp_path):
    out = tmp_path / "model" / "v0001"
    manifest = adapter.write(out, save, ABOUT)
    assert verify_adapter(out) == manifest == json.loads((out / "manifest.json").read_bytes())
    assert sorted(manifest["files"]) == ["adapter_config.json", "adapter_model.safetensors"]
    assert [p.name for p in out.parent.iterdir()] == ["v0001"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_changed_or_missing_file_is_named(tmp_path, name):
    out = tmp_path / "v0001"
    adapter.write(out, save, ABOUT)
    (out / name).write_bytes(b"other")
    with pytest.raises(AdapterError, match=f"{name} is corrupt"):
        verify_adapter(out)
    (out / name).unlink()
    with pytest.raises(AdapterError, match=f"{name} cannot be read"):
        verify_adapter(out)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "files": {"../x": "0"}}'])
def test_a_broken_manifest_is_an_error(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(AdapterError, match=r"manifest\.json"):
        verify_adapter(tmp_path)
    with pytest.raises(AdapterError, match="missing"):
        verify_adapter(tmp_path / "none")


def test_a_write_that_fails_leaves_nothing(tmp_path):
    def fail(folder: Path) -> None:
        save(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        adapter.write(tmp_path / "v0001", fail, ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_a_version_is_never_replaced_but_its_own_run_may_come_again(tmp_path):
    out = tmp_path / "v0001"
    first = adapter.write(out, save, ABOUT)
    assert adapter.write(out, save, ABOUT) == first
    with pytest.raises(AdapterError, match="already holds"):
        adapter.write(out, save, ABOUT | {"run": 2})


def test_what_a_killed_write_left_does_not_matter(tmp_path):
    (tmp_path / ".v0001.tmp").mkdir()
    (tmp_path / ".v0001.tmp" / "half").write_bytes(b"x")
    adapter.write(tmp_path / "v0001", save, ABOUT)
    assert [p.name for p in tmp_path.iterdir()] == ["v0001"]


def beside(out):
    (out / "adapter_model.bin").write_bytes(b"a pickle")


def linked(out):
    elsewhere = out.parent / "elsewhere"
    elsewhere.write_bytes(NO_TENSORS)
    (out / "adapter_model.safetensors").unlink()
    (out / "adapter_model.safetensors").symlink_to(elsewhere)


def a_folder(out):
    (out / "more").mkdir()


def a_pipe(out):
    (out / "adapter_config.json").unlink()
    os.mkfifo(out / "adapter_config.json")


def listed(name):
    def harm(out):
        if "/" not in name:
            (out / name).write_bytes(b"x")
        manifest = json.loads((out / "manifest.json").read_bytes())
        manifest["files"][name] = sha256(b"x").hexdigest()
        (out / "manifest.json").write_text(json.dumps(manifest))

    return harm


def huge(out):
    (out / "manifest.json").write_text(" " * (5 * 2**20) + "{}")


def lying(out):
    content = (2**40).to_bytes(8, "little") + b"{}"
    (out / "adapter_model.safetensors").write_bytes(content)
    manifest = json.loads((out / "manifest.json").read_bytes())
    manifest["files"]["adapter_model.safetensors"] = sha256(content).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (beside, "adapter_model.bin is not in the manifest"), (linked, "not a plain file"), (a_folder, "not in the"),
        (a_pipe, "not a plain file"), (listed("/etc/passwd"), "not a plain file name"),
        (listed("../x.json"), "not a plain"),
        (listed("adapter_model.bin"), "safetensors and JSON"), (listed("model.py"), "safetensors and JSON"),
        (huge, "is over"), (lying, "not a sound safetensors file: its head claims"),
    ],
)  # fmt: skip
def test_nothing_but_what_the_manifest_says_is_loaded(tmp_path, harm, why):
    out = tmp_path / "v0001"
    adapter.write(out, save, ABOUT)
    harm(out)
    with pytest.raises(AdapterError, match=why):
        verify_adapter(out)


@pytest.mark.parametrize("name", ["\ud800.json", "a" * 300 + ".json", "é" * 126 + ".json"])
@pytest.mark.parametrize("member", ["files", "kept"])
def test_a_name_that_no_file_has_is_refused(tmp_path, name, member):
    """It raised what nobody catches, OSError and UnicodeEncodeError."""
    out = tmp_path / "v0001"
    adapter.write(out, save, ABOUT)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest[member] = {**manifest.get(member, {}), name: "0" * 64}
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(AdapterError, match="not a plain file name"):
        verify_adapter(out)


def test_a_sparse_file_is_refused_by_its_head(tmp_path, monkeypatch):
    """One of 10 GB was hashed for a minute, while no version could change."""
    out = tmp_path / "v0001"
    adapter.write(out, save, ABOUT)
    hashed = []
    monkeypatch.setattr(
        "trainer.formats.manifest.sha256",
        lambda path: hashed.append(path.name) or sha256(path.read_bytes()).hexdigest(),
    )
    with (out / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(0)
        file.truncate(10 << 30)
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors is corrupt"):
        verify_adapter(out)
    assert "adapter_model.safetensors" not in hashed
