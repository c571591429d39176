"""An export is cut into requests, whatever its lines are."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.imports import export_file
from proxy.cli.imports.export_file import UnreadableFile, batches


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 1 GB took 2.1 GB, and /dev/zero all there is; what stood before it was lost, though it was said to be
    taken."""
    monkeypatch.setattr(export_file, "LONGEST", 1000)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"{}\n{}\n" + b"a" * 1001 + b"\n{}\n")
    parts = batches(file)
    assert next(parts) == (0, b"{}\n{}\n")
    with pytest.raises(UnreadableFile, match=r"line 3 of .* is longer than 1,000 bytes"):
        next(parts)
    file.write_bytes(b"a" * 999 + b"\n{}")
    assert list(batches(file)) == [(0, b"a" * 999 + b"\n{}")]
