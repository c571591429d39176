"""How much room a whole model takes, said before anything is trained: against what fusing really writes."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from proxy.backends import gguf_files
from proxy.backends.gguf_files import room_problem, whole_size
from tests.trainer.formats.test_gguf import make_adapter
from tests.trainer.formats.test_merge_gguf import layers_of, make_base
from trainer.formats.merge_gguf import fuse

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("kind", ["llama", "phi3"])
@pytest.mark.parametrize("type", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q5_0, Type.Q4_1, Type.Q4_0])
def test_a_version_is_as_large_as_was_said(tmp_path: Path, kind: str, type: Type) -> None:
    """Equal where each tensor is stored as it usually is; one that stays in its own type makes it smaller."""
    base = make_base(tmp_path / "base.gguf", kind, type)
    make_adapter(tmp_path / "adapter", layers_of(kind))
    found = fuse(tmp_path / "adapter", base, tmp_path / "out.gguf")
    assert base.stat().st_size <= found.bytes_after <= whole_size(base)
    assert whole_size(base) < 3 * base.stat().st_size


def test_a_file_of_few_bits_grows_more(tmp_path: Path) -> None:
    """Of what the gguf package cannot write, the sizes in the file's own head are enough."""
    four = whole_size(make_base(tmp_path / "four.gguf", "llama", Type.Q4_0))
    assert four / (tmp_path / "four.gguf").stat().st_size > 1
    assert gguf_files._tensor_growth(gguf_files.Tensor("blk.0.attn_q.weight", 10, 8000, 2.625)) == 5875
    assert gguf_files._tensor_growth(gguf_files.Tensor("blk.0.attn_q.weight", 8, 8000, 8.5)) == 7500
    assert gguf_files._tensor_growth(gguf_files.Tensor("blk.0.attn_q.weight", 1, 8000, 16.0)) == 0


@pytest.mark.parametrize("type", [Type.F16, Type.Q8_0, Type.Q4_1])
def test_a_version_as_large_as_its_model_is_said_to_be(tmp_path: Path, type: Type) -> None:
    base = make_base(tmp_path / "base.gguf", "llama", type)
    line = str(gguf_files.growth_line(base))
    assert "as large as the one that it is made of" in line and " MB" in line


def test_why_a_version_is_larger_than_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that rlproxy only reads, as IQ4_XS."""
    base = make_base(tmp_path / "base.gguf", "llama", Type.Q4_1)
    monkeypatch.setattr(gguf_files, "SIZE_KEEPING", gguf_files.SIZE_KEEPING - {int(Type.Q4_1)})
    line = str(gguf_files.growth_line(base))
    assert "a model of up to" in line and "14 of its 14 layers have 5.0 bits a weight" in line and "only reads" in line
    assert gguf_files.growth_line(tmp_path / "none.gguf") is None


def test_what_is_not_read_is_taken_for_twice_its_size(tmp_path: Path) -> None:
    (tmp_path / "odd.gguf").write_bytes(b"GGUF and something else" * 9)
    assert whole_size(tmp_path / "odd.gguf") == 2 * 23 * 9
    assert "cannot be read any more" in str(room_problem(tmp_path / "none.gguf", tmp_path))


@pytest.mark.parametrize(
    ("spare", "copies", "free_mb", "fits"),
    [(0, 3, 119, False), (0, 3, 121, True), (100, 3, 141, True), (100, 3, 139, False), (100, 0, 139, False)],
)
def test_each_copy_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, copies: int, free_mb: int, fits: bool
) -> None:
    """While Ollama makes a whole model it has three copies of it, and fusing leaves some room."""
    base = tmp_path / "models" / "base.gguf"
    base.parent.mkdir()
    with base.open("wb") as file:
        os.truncate(file.fileno(), 20 * 10**6)
    monkeypatch.setattr(gguf_files, "SPARE", spare * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, free_mb * 10**6))
    why = room_problem(base, tmp_path / "home" / "not yet there", (base.parent, copies))
    assert (why is None) is fits, why
    assert fits or "GB are free; free some space" in str(why)
