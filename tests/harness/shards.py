"""Several processes that train a model together, each in a control group of its own with a limit of memory.

    python -m tests.harness.shards FILE WEIGHTS GROUP…

All are forked once Python and its libraries are loaded, so a group counts what its process needs for the model alone.
The first is rank 0, which takes two optimiser steps and prints a line of JSON; a process alone shares nothing. The exit
status is rank 0's, negative for a signal.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch

from config import presets
from trainer import objectives, ranks
from trainer.mis_po import Terms
from trainer.policy import packing, policies, torch_policy  # noqa: F401  loaded before the forks
from trainer.policy.packing import Tokens

STEPS = 2


def steps(weights: Path) -> None:
    preset = presets.resolve("balanced", {"rank": 4, "alpha": 8, "max_seq_len": 64})
    policy = policies.open_policy("torch", weights, preset, parent=None, threads=1, seed=0, compute="float32")
    packed = packing.pack([Tokens(tuple(range(3, 15)), tuple(range(20, 28)))])
    old = policy.log_probs(packed).plain
    whole, before, losses = np.ones(len(old)), policy.adapter(), []
    terms = Terms(
        old=old, ref=old, behaviour=old, keep=whole, advantage=whole, share=whole / len(old), member=whole[None]
    )
    for _ in range(STEPS):
        losses.append(policy.backward(packed, terms, objectives.make_loss(preset))["loss"])
        policy.step(1e-3, 1.0)
    moved = max(float(np.abs(tensor - before[name]).max()) for name, tensor in policy.adapter().items())
    print(json.dumps({"losses": losses, "moved": moved}), flush=True)


def process(rank: int, group: Path, file: str, weights: Path, count: int) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    if rank:
        ranks.follow(f"file://{file}", rank, count)
        return
    if count > 1:
        ranks.join(f"file://{file}", 0, count)
    steps(weights)


def main() -> None:
    file, weights, groups = sys.argv[1], Path(sys.argv[2]), [Path(group) for group in sys.argv[3:]]
    torch.set_num_threads(1)
    children = []
    for rank, group in enumerate(groups):
        if (child := os.fork()) == 0:
            try:
                process(rank, group, file, weights, len(groups))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    _, status = os.waitpid(children[0], 0)
    for child in children[1:]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    sys.exit(0 if status == 0 else -os.WTERMSIG(status) if os.WIFSIGNALED(status) else 1)


if __name__ == "__main__":
    main()
