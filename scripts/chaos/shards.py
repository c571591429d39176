"""A model of four times the memory that one process may have, trained by several that hold it together.

`python -m scripts.chaos.shards` writes benchmarks/shards.json. As root on Linux with control groups of version 1.

The model is a Llama of random weights, stored in bf16 and computed in fp32, as on each CPU. One process without a limit
and several under torchrun do the same work. Samples are scored, two optimiser steps taken, samples scored again by
version and base, as the gate does, and a reply is sampled. Each of the several has a control group of its own. Its
limit is what an idle rank takes with torch and all libraries, and a quarter of the model's bytes in fp32. One process
in such a group is killed. A whole run of the trainer with as much by RLIMIT_DATA ends with a sentence.

The limit is of private memory. A page of a file counts in the group that read it first, and the model and the
libraries were read before. RLIMIT_DATA counts what is mapped, so it has the file's size more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file, save_file

from scripts.harness.circumstances import circumstances
from trainer.child_process import ROOT, python_environment

OUT: Final = ROOT / "benchmarks" / "shards.json"
GROUPS: Final = Path("/sys/fs/cgroup/memory")
LAYERS: Final = 64
PROCESSES: Final = 10
PART: Final = 4  # of the model's bytes that a process may have: one of so many
LIMIT_S: Final = 1800
# The process goes into its group, takes its limit, and becomes the command.
ENTER: Final = 'echo 0 > "$0-${RANK:-0}/cgroup.procs" && ulimit -d "$1" && shift && exec "$@"'
PYTHON: Final = [sys.executable, "-P"]
RANK: Final = [*PYTHON, "-m", "scripts.chaos.shards"]
RESULTS: Final = ("numbers.json", "adapter.safetensors")
SAMPLES: Final = 1  # of so few tokens that what is kept of them for the way back does not count
STEPS: Final = 2
REPLY_TOKENS: Final = 2


def make_model(folder: Path, layers: int) -> int:
    """Random weights in bf16; their bytes in fp32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from scripts.harness.tiny_model import END, SIZE, START, byte_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=512, intermediate_size=1376, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=START,
        eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return int(4 * sum(parameter.numel() for parameter in model.parameters()))


class Groups:
    """A control group for each process."""

    def __init__(self, name: str, count: int, limit: int | None) -> None:
        self._prefix = GROUPS / f"rlproxy-shards-{os.getpid()}-{name}"
        self._folders = [Path(f"{self._prefix}-{rank}") for rank in range(count)]
        self._limit = limit

    def __enter__(self) -> Groups:
        for folder in self._folders:
            folder.mkdir()
            if self._limit is not None:
                (folder / "memory.limit_in_bytes").write_text(str(self._limit))
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            (folder / "memory.force_empty").write_text("0")
            folder.rmdir()

    def run(self, command: list[str], data_limit: int | None = None) -> tuple[int, str, float]:
        """The exit status, what it printed, and seconds. By torchrun where there are several groups."""
        data_kib = "unlimited" if data_limit is None else str(data_limit // 1024)
        entered = ["sh", "-c", ENTER, str(self._prefix), data_kib, *command]
        if (count := len(self._folders)) > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "--no-python"]
            entered = [*PYTHON, *torchrun, *entered]
        began = time.monotonic()
        process = subprocess.run(
            entered, env=python_environment(1), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
        )
        return process.returncode, process.stdout + process.stderr, round(time.monotonic() - began, 1)

    def peaks(self) -> list[int]:
        return [int((folder / "memory.max_usage_in_bytes").read_text()) for folder in self._folders]


def idle() -> None:
    """Be a rank that has no model; print what RLIMIT_DATA counts of it."""
    from trainer import ranks
    from trainer.loop import run  # noqa: F401  all that a trainer loads
    from trainer.policy import torch_policy  # noqa: F401

    if "RANK" in os.environ:
        import torch.distributed as dist

        ranks.join("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        dist.barrier()
    status = Path("/proc/self/status").read_text().split("VmData:")[1]
    print(f"data {int(status.split()[0]) * 1024}", flush=True)
    os._exit(0)


def train(folder: Path) -> None:
    """Be a rank of the work on this folder's model; rank 0 writes its numbers there."""
    from trainer import ranks

    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if rank:
        ranks.follow("env://", rank, count)
        os._exit(0)
    if count > 1:
        ranks.join("env://", 0, count)
    from config import presets
    from trainer import objectives
    from trainer.mis_po import Terms
    from trainer.policy import packing, policies, torch_shards
    from trainer.policy.packing import Tokens

    preset = presets.resolve("balanced", {"rank": 1, "alpha": 2, "max_seq_len": 64})
    policy = policies.open_policy("torch", folder / "model", preset, parent=None, threads=1, seed=0, compute="float32")
    draw = np.random.default_rng(0)
    rows = [Tokens(tuple(draw.integers(3, 259, 2)), tuple(draw.integers(3, 259, 2))) for _ in range(SAMPLES)]
    packed = packing.pack(rows)
    old = policy.log_probs(packed).plain
    share, whole = np.full(len(old), 1 / len(old)), np.ones(len(old))
    terms = Terms(
        old=old, ref=old, behaviour=old, keep=whole, advantage=np.repeat([1.0, -1.0], len(old) // 2), share=share,
        member=whole[None],
    )  # fmt: skip
    steps = []
    for _ in range(STEPS):
        loss = policy.backward(packed, terms, objectives.make_loss(preset))["loss"]
        steps.append([loss, policy.step(1e-3, 1.0)])
    numbers = {
        "old": old.tolist(),
        "steps": steps,
        "log_probs": policy.log_probs(packed).plain.tolist(),
        "surprise": policy.surprise(packed).excess.tolist(),
    }
    reply = policy.generate([rows[0].prompt], max_tokens=REPLY_TOKENS, temperature=0.0, seed=0)[0]
    save_file(policy.adapter(), folder / "adapter.safetensors")
    (folder / "numbers.json").write_text(json.dumps({"numbers": numbers, "reply": reply}))
    if count > 1:
        torch_shards.tell(torch_shards.END)
    os._exit(0)


def differences(single: Path, several: Path) -> dict[str, float]:
    """The largest ones, of each kind of numbers and of the adapter's tensors."""
    first, second = (json.loads((folder / "numbers.json").read_bytes()) for folder in (single, several))
    assert first["reply"] == second["reply"]
    gaps = {
        name: float(np.abs(np.array(values) - np.array(second["numbers"][name])).max())
        for name, values in first["numbers"].items()
    }
    tensors, shared_tensors = (load_file(folder / "adapter.safetensors") for folder in (single, several))
    assert tensors.keys() == shared_tensors.keys()
    return gaps | {"adapter": max(float(np.abs(tensors[name] - shared_tensors[name]).max()) for name in tensors)}


def measured(folder: Path, layers: int, processes: int) -> dict[str, Any]:
    """Each as long as it lasts; the model is made in `folder`."""
    whole = make_model(folder / "model", layers)
    file_bytes = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    with Groups("idle", processes, None) as groups:
        status, output, _ = groups.run([*RANK, "--idle"])
        assert status == 0, output
        idle_bytes = max(groups.peaks())
        idle_data = max(map(int, re.findall(r"data (\d+)", output)))
    limit, data_limit = idle_bytes + whole // PART, idle_data + file_bytes + whole // PART
    about = {"model_bytes": whole, "file_bytes": file_bytes, "layers": layers, "idle_bytes": idle_bytes}
    about |= {"limit_bytes": limit, "data_limit_bytes": data_limit, "processes": processes}
    print(json.dumps(about), flush=True)
    return about | _measure_one(folder, limit, data_limit) | _measure_several(folder, limit, processes)


def _measure_one(folder: Path, limit: int, data_limit: int) -> dict[str, Any]:
    """One process without a limit, with one that the kernel tells it of, and in a group with one."""
    with Groups("free", 1, None) as groups:
        status, output, seconds = groups.run([*RANK, "--train", str(folder)])
        assert status == 0, output
        peak = groups.peaks()[0]
    for name in RESULTS:
        (folder / name).rename(folder / f"one-{name}")
    run = _run_folder(folder)
    with Groups("told", 1, None) as groups:
        exit_status, output, _ = groups.run([*PYTHON, "-m", "trainer", str(run)], data_limit)
    result = json.loads((run / "result.json").read_bytes()) if (run / "result.json").exists() else {"reason": output}
    with Groups("killed", 1, limit) as groups:
        killed, _, _ = groups.run([*RANK, "--train", str(folder)])
    return {
        "one_without_limit": {"peak_bytes": peak, "seconds": seconds},
        "one_with_rlimit": {"exit": exit_status, "reason": result["reason"]},
        "one_in_group": {"exit": killed, "has_result": (folder / RESULTS[0]).exists()},
    }


def _run_folder(folder: Path) -> Path:
    """A run that ends as its model loads: before it has read a sample."""
    run = folder / "told"
    run.mkdir()
    order = {
        "format": 1, "run": 1, "model": "shards", "weights": str(folder / "model"), "version": 1, "parent": 0,
        "out": str(folder / "v0001"), "seed": 0, "threads": 1, "compute": "float32",
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(order))
    for name in ("samples.jsonl", "calibration.jsonl"):
        (run / name).write_text("")
    return run


def _measure_several(folder: Path, limit: int, processes: int) -> dict[str, Any]:
    """Several under torchrun, with what tells them from one."""
    with Groups("shared", processes, limit) as groups:
        status, output, seconds = groups.run([*RANK, "--train", str(folder)])
        peaks = groups.peaks()
    several = {"exit": status, "seconds": seconds, "peak_bytes": peaks}
    if status != 0:
        return {"several": several | {"output": output[-4000:]}}
    single, shared = folder / "one", folder / "shared"
    for place, prefix in ((single, "one-"), (shared, "")):
        place.mkdir()
        for name in RESULTS:
            (folder / f"{prefix}{name}").rename(place / name)
    return {"several": several, "differences": differences(single, shared)}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rlproxy-shards-") as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--json", type=Path, default=OUT)
    parser.add_argument("--idle", action="store_true", help="be a rank without a model, for this script itself")
    parser.add_argument("--train", type=Path, help="be a rank of the work on this folder, for this script itself")
    arguments = parser.parse_args()
    if arguments.idle:
        idle()
    if arguments.train is not None:
        train(arguments.train)
    about = circumstances()
    with _folder() as folder:
        result = measured(folder, arguments.layers, arguments.processes)
    print(json.dumps(result, indent=1))
    arguments.json.write_text(json.dumps(about | result, indent=1) + "\n")


if __name__ == "__main__":
    main()
