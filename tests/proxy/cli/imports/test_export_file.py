"""An export is cut into requests, whatever its lines are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from proxy.cli.imports import export_file
from proxy.cli.imports.export_file import UnreadableFile, batches
from proxy.core.address_file import ADDRESS_FILE
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy


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


@pytest.mark.parametrize("long", [200_000, 9_000_000])
async def test_a_line_over_the_bound_of_a_request_costs_that_line(cli: Proxy, tmp_path: Path, long: int) -> None:
    for n in range(8):
        await (await cli.chat(f"{n}" + "x" * (20_000 if n % 2 else 1))).read()
    file = tmp_path / "export.jsonl"
    assert (await rlproxy(cli.home, "export", "-o", str(file)))[0] == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[2]["text"] = "x" * long
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    await cli.stop()
    await cli.start(home=tmp_path / "other", server__max_body_bytes=100_000)
    (tmp_path / "other" / ADDRESS_FILE).write_text(json.dumps({"url": cli.url, "pid": os.getpid()}))
    code, out, err = await rlproxy(tmp_path / "other", "import", str(file))
    assert (code, out) == (1, "7 completions and 0 ratings taken, 0 were here before\n"), err
    assert err == ("line 3 was not taken: The body is over 100000 bytes; raise server.max_body_bytes to allow it.\n")
