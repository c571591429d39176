"""The sums of a run's records, which come from several workers."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.suite_times import summary


def test_the_dearest_file_is_first(tmp_path: Path) -> None:
    records = [("tests/a.py::one", 1.0, 0.5), ("tests/b.py::one[x::y]", 3.0, 2.0), ("tests/a.py::two", 2.0, 0.25)]
    for worker, of_one in enumerate((records[:2], records[2:])):
        lines = [json.dumps({"test": test, "seconds": seconds, "cpu": cpu}) for test, seconds, cpu in of_one]
        (tmp_path / f"gw{worker}.jsonl").write_text("\n".join(lines) + "\n")
    found = summary(tmp_path)
    assert (found["tests"], found["seconds"], found["cpu"]) == (3, 6.0, 2.8)
    assert list(found["files"].items()) == [("tests/b.py", [1, 3.0, 2.0]), ("tests/a.py", [2, 3.0, 0.8])]
