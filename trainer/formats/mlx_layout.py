"""A PEFT adapter folder in mlx-lm's own layout, for mlx_lm.server: `python -m trainer.formats.mlx_layout`.

Owns the two files that mlx-lm reads, adapters.safetensors and adapter_config.json. Needs numpy and safetensors, neither
torch nor mlx. Not here: reading a PEFT folder (peft_folder), training on mlx (mlx_policy). Whether the layers are those
of the model that is served is the server's to say: it refuses an adapter that names others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from trainer.formats import peft_folder
from trainer.formats.manifest import AdapterError
from trainer.formats.model_info import PART
from trainer.io.run_folder import sync_folder

ALL_LAYERS: Final = -1  # what mlx-lm's own trainer writes for that
MLX_PART: Final = "language_model.model."  # as PART in mlx-lm's models of several parts
_BLOCK: Final = re.compile(r"(?:.+\.)?layers\.\d+\.(?P<key>.+)", re.DOTALL)
_SIDE: Final = re.compile(r"\.lora_[AB]\.weight$")


def convert(adapter: Path, out: Path) -> None:
    """Write the LoRA in `adapter` to the folder `out`: whole, or not at all. Nothing is done where it is there.

    Raises AdapterError for what mlx-lm would not wear exactly as PEFT does, and names it.
    """
    if out.exists():
        return
    shapes: dict[str, tuple[int, int]] = {}

    def load(path: str) -> dict[str, NDArray[Any]]:
        tensors = _load(path)
        shapes.update(_shapes(tensors))
        return tensors

    lora = peft_folder.read(adapter, shapes, load, lambda array: bool(np.isfinite(array).all()))
    first = next(iter(lora.pairs.values()))
    rank = first.a.shape[0]
    keys, tensors = set(), {}
    for module, pair in lora.pairs.items():
        if (match := _BLOCK.fullmatch(module)) is None:
            raise AdapterError(f"{module} is in none of the model's layers, and mlx-lm takes a LoRA only there.")
        if pair.a.shape[0] != rank:
            raise AdapterError(f"{module} has rank {pair.a.shape[0]} and another layer {rank}; mlx-lm has one for all.")
        keys.add(match["key"])
        # One scale for the folder: what differs goes into B. A layer of `keys` without tensors stays as it is.
        b = pair.b if pair.scale == first.scale else pair.b * np.float32(pair.scale / first.scale)
        name = f"{MLX_PART}{module.removeprefix(PART)}" if module.startswith(PART) else module
        tensors[f"{name}.lora_a"] = np.ascontiguousarray(pair.a.T)  # (in, r)
        tensors[f"{name}.lora_b"] = np.ascontiguousarray(b.T)  # (r, out)
    config = {
        "fine_tune_type": "lora",
        "num_layers": ALL_LAYERS,
        "lora_parameters": {"rank": rank, "scale": first.scale, "dropout": 0.0, "keys": sorted(keys)},
    }
    _write(out, tensors, config)


def _write(out: Path, tensors: Mapping[str, NDArray[Any]], config: Mapping[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        save_file(dict(tensors), temporary / "adapters.safetensors")
        (temporary / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        for part in temporary.iterdir():
            with part.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        os.rename(temporary, out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _load(path: str) -> dict[str, NDArray[Any]]:
    """Every tensor as float32, which is what ours are."""
    try:
        return {name: array.astype(np.float32) for name, array in load_file(path).items()}
    except (KeyError, TypeError) as error:  # numpy itself has no bfloat16
        raise AdapterError(f"{path} holds tensors of a kind that numpy does not have ({error}).") from None


def _shapes(tensors: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, int]]:
    """(out, in) of each layer as its two matrices have it: there is no model here to compare them with."""
    widths: dict[str, dict[str, int]] = {}
    for name, array in tensors.items():
        if _SIDE.search(name) and array.ndim == 2:
            module = _SIDE.sub("", name).removeprefix(peft_folder.PREFIX)
            side = "in" if name.endswith("A.weight") else "out"
            widths.setdefault(module, {})[side] = array.shape[1 if side == "in" else 0]
    return {module: (sides.get("out", 0), sides.get("in", 0)) for module, sides in widths.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.formats.mlx_layout", description="A PEFT adapter for mlx-lm."
    )
    parser.add_argument("adapter", type=Path, help="its folder: adapter_config.json, adapter_model.safetensors")
    parser.add_argument("out", type=Path, help="the folder to write")
    arguments = parser.parse_args()
    try:
        convert(arguments.adapter, arguments.out)
    except AdapterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
