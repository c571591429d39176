"""Which framework trains on this machine, and the policy on it.

Owns the choice and its reason. Imports neither framework before it is chosen: a Mac may have mlx and no torch. Not
here: what a policy can do (policy), how (torch_policy, mlx_policy).
"""

from __future__ import annotations

import platform
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from config.presets import Preset
from trainer.io.run_folder import Compute, Framework, RunError, ServerFormat
from trainer.policy.policy import Policy
from trainer.policy.tinker_client import TinkerServer

NEEDS = {"torch": ("torch", "rlproxy[train]"), "mlx": ("mlx_lm", "rlproxy[mlx]")}  # module, what to install


def choose(setting: Framework) -> tuple[str, str]:
    """torch or mlx, and why."""
    name, reason = _for_this_machine() if setting == "auto" else (setting, "run.json names it")
    module, extra = NEEDS[name]
    if find_spec(module) is None:
        raise RunError(f"there is no {module} in this environment ({name}: {reason}): pip install '{extra}'.")
    return name, reason


def _for_this_machine() -> tuple[str, str]:
    if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return "torch", "this is no Mac with Apple silicon"
    if find_spec(NEEDS["mlx"][0]) is None:
        return "torch", "Apple silicon without mlx-lm (pip install 'rlproxy[mlx]' would be faster)"
    return "mlx", "Apple silicon with mlx-lm"


def find_device(framework: str) -> tuple[str, str]:
    """cpu, cuda or gpu, and why."""
    if framework == "mlx":
        from trainer.policy import mlx_policy

        return mlx_policy.find_device()
    from trainer.policy import torch_load

    return torch_load.find_device()


def open_policy(
    framework: str,
    weights: Path,
    preset: Preset,
    *,
    parent: Path | None,
    threads: int,
    seed: int,
    compute: Compute = "auto",
    in_4bit: bool = False,
    offload: bool = False,
    server_format: ServerFormat = "peft",
    tinker: TinkerServer | None = None,
    run_folder: Path | None = None,
) -> Policy:
    """The weights loaded, wearing the parent adapter or a new one. `tinker`: who takes the steps, and keeps what the
    run is to find again in `run_folder`."""
    if framework == "mlx":
        if in_4bit or offload or compute == "bfloat16":
            raise RunError(
                "MLX computes in float32, in the one memory that a Mac has, and packs nothing itself: leave "
                "train.compute, train.offload and train.load_in_4bit as they are. To train on a base of 4 bits, name "
                "one that mlx-lm has quantised."
            )
        from trainer.policy.mlx_policy import MlxPolicy

        return MlxPolicy(
            weights, preset, parent=parent, seed=seed, server_format=server_format
        )  # its threads are OMP_NUM_THREADS
    from trainer.policy import torch_shards
    from trainer.policy.torch_policy import TorchPolicy

    if tinker is not None:
        if torch_shards.processes() > 1:
            raise RunError("a Tinker server has GPUs of its own: set train.gpus to 1.")
        from trainer.policy.tinker_policy import TinkerPolicy

        assert run_folder is not None
        return TinkerPolicy(
            weights,
            preset,
            server=tinker,
            run_folder=run_folder,
            parent=parent,
            threads=threads,
            seed=seed,
            compute=compute,
            in_4bit=in_4bit,
            offload=offload,
            server_format=server_format,
        )

    if torch_shards.processes() > 1 and (in_4bit or offload):
        raise RunError("train.gpus shares out whole layers: set train.load_in_4bit and train.offload to false.")
    open_torch = TorchPolicy if torch_shards.processes() == 1 else partial(torch_shards.lead, TorchPolicy)
    return open_torch(
        weights,
        preset,
        parent=parent,
        threads=threads,
        seed=seed,
        compute=compute,
        in_4bit=in_4bit,
        offload=offload,
        server_format=server_format,
    )
