"""A model of four times the memory that one process may have is trained by several that hold it together.

Each process is in a control group with a limit of its own (cgroup v1, as root), so what needs more is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.harness.tiny import tokenizer
from trainer.child_process import ROOT, python_environment

GROUPS = Path("/sys/fs/cgroup/memory")
COUNT = 8
LAYERS = 44  # 3.3 M parameters each
LIMIT_S = 900
KILLED = 256 - 9  # the exit status of a process whose rank 0 the kernel killed

pytestmark = [
    pytest.mark.scale,
    pytest.mark.timeout(3 * LIMIT_S),
    pytest.mark.skipif(not os.access(GROUPS, os.W_OK), reason="no memory control groups of cgroup v1 for this user"),
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in float32, on a disk."""
    folder = tmp_path_factory.mktemp("shards") / "model"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259, hidden_size=512, intermediate_size=1600, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def groups(weights: Path) -> Iterator[list[Path]]:
    """A control group for each process, with a quarter of the weights' bytes."""
    limit = sum(file.stat().st_size for file in weights.glob("*.safetensors")) // 4
    made = [GROUPS / f"rlproxy-shards-{os.getpid()}-{rank}" for rank in range(COUNT)]
    for group in made:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    yield made
    for group in made:
        group.rmdir()


def run(groups: list[Path], file: Path, weights: Path) -> tuple[int, str]:
    """The exit status, and what rank 0 printed."""
    command = [sys.executable, "-P", "-m", "tests.harness.shards", str(file), str(weights), *map(str, groups)]
    env = python_environment(1)
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout


def test_it_trains_where_one_process_is_killed(weights: Path, groups: list[Path], tmp_path: Path) -> None:
    status, output = run(groups[:1], tmp_path / "alone", weights)
    assert (status, output) == (KILLED, ""), "one process should not fit into a quarter of its weights"
    status, output = run(groups, tmp_path / "ranks", weights)
    assert status == 0, output
    result = json.loads(output)
    peaks = [int((group / "memory.max_usage_in_bytes").read_text()) for group in groups]
    print(json.dumps({"peaks": peaks, **result}))
    assert len(result["losses"]) == 2 and result["moved"] > 0
