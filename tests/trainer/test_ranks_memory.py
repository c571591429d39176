"""A model of four times the memory that one process may have is trained by several that hold it together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.chaos import shards

pytestmark = [
    pytest.mark.scale,
    pytest.mark.timeout(4 * shards.LIMIT_S),
    pytest.mark.skipif(
        not os.access(shards.GROUPS, os.W_OK), reason="no memory control groups of cgroup v1 for this user"
    ),
]


def test_several_train_what_one_cannot_hold(tmp_path: Path) -> None:
    result = shards.measured(tmp_path, shards.LAYERS, shards.PROCESSES)
    room = result["limit_bytes"] - result["idle_bytes"]
    assert result["model_bytes"] >= shards.PART * room
    told, killed, several = result["one_with_rlimit"], result["one_in_group"], result["several"]
    assert told["exit"] == 1 and told["reason"].startswith("out of memory")
    assert killed == {"exit": -9, "has_result": False}
    assert several["exit"] == 0, several
    assert max(several["peak_bytes"]) <= result["limit_bytes"]
    assert max(result["differences"].values()) <= 1e-5
