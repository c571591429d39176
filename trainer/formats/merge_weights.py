"""A model's folder of weights and a PEFT adapter as one folder: `python -m trainer.formats.merge_weights`.

Owns the sum W + scale · B A, in float32, stored in the type of W. One file of the base is in memory at a time. Weights
that no LoRA touches stay as they are, and so do the tokenizer and the configuration. The folder is there whole, or not
at all. Not here: the sum in a GGUF file (merge_gguf).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.formats import model_info, peft_folder
from trainer.formats.manifest import AdapterError
from trainer.formats.peft_folder import LoraPair

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
# Of the base's folder: its weights come as the sum, in whatever format they lie there, and its card is about the base.
LEFT_OUT: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".md")


def fuse(adapter: Path, weights: Path, out: Path) -> int:
    """Write the sum to the folder `out`, which must not exist. Returns how many matrices changed. Raises
    AdapterError."""
    if out.exists():
        raise AdapterError(f"{out} is there already; choose another folder.")
    lora = peft_folder.read(adapter, model_info.linear_shapes(weights), load_file, _finite)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        changed = sum(_write_sum(path, lora.pairs, temporary) for path in model_info.weight_files(weights))
        if changed != len(lora.pairs):
            raise AdapterError(f"{weights} has {changed} of the {len(lora.pairs)} matrices that {adapter} changes.")
        for path in sorted(weights.iterdir()):
            if path.is_file() and _belongs(path.name):
                shutil.copyfile(path, temporary / path.name)  # a hub's cache has links: their files are copied
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return changed


def _belongs(name: str) -> bool:
    """Tell whether a file of the base, other than its weights, belongs to the sum too."""
    if name.upper().startswith(("LICENSE", "NOTICE")):
        return True
    return not name.startswith(".") and not name.endswith((*LEFT_OUT, ".bin.index.json"))


def _write_sum(path: Path, pairs: Mapping[str, LoraPair], folder: Path) -> int:
    tensors: dict[str, Tensor] = {}
    changed = 0
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        for name in file.keys():  # noqa: SIM118  not a dict
            tensors[name] = tensor = file.get_tensor(name)
            pair = pairs.get(model_info.module_of(name)) if name.endswith(".weight") else None
            if pair is not None:
                tensors[name] = _sum(name, tensor, pair)
                changed += 1
    save_file(tensors, folder / path.name, metadata=metadata or {"format": "pt"})
    return changed


def _sum(name: str, weight: Tensor, pair: LoraPair) -> Tensor:
    if weight.dtype not in FLOATS:
        raise AdapterError(
            f"{name} is stored as {weight.dtype}: packed weights cannot take the sum; use the originals."
        )
    change: Tensor = pair.scale * (pair.b.float() @ pair.a.float())
    merged: Tensor = (weight.float() + change).to(weight.dtype)
    return merged


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.formats.merge_weights", description="A model and an adapter as one folder of weights."
    )
    parser.add_argument("adapter", type=Path, help="its folder: adapter_config.json, adapter_model.safetensors")
    parser.add_argument("base", type=Path, help="the folder of the model that it was trained on")
    parser.add_argument("out", type=Path, help="the folder to write")
    arguments = parser.parse_args()
    try:
        changed = fuse(arguments.adapter, arguments.base, arguments.out)
    except (AdapterError, SafetensorError, OSError, ValueError) as error:  # ProfileError is a ValueError
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments.out}: {changed} matrices changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
