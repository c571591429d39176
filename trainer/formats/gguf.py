"""A PEFT adapter folder as one GGUF file, for llama.cpp and what is built on it: `python -m trainer.formats.gguf`.

Owns the file, and the scale that llama.cpp expects of a LoRA. Needs numpy, safetensors and the gguf
package (the `gguf` extra), no torch. Not here: names and orders (architectures), reading a PEFT folder (peft_folder),
whole models with the LoRA added to their weights (merge_gguf).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import deserialize

from trainer.formats import model_info, peft_folder
from trainer.formats.architectures import ARCHITECTURES, Array, Heads, LayerTensor, find_tensor, ordered, wearable
from trainer.formats.manifest import AdapterError
from trainer.formats.peft_folder import LoraPair


def convert(adapter: Path, weights: Path, out: Path) -> None:
    """Write the LoRA in `adapter`, trained on the model in `weights`, to the file `out`: whole, or not at all.

    Raises AdapterError for what llama.cpp would not wear exactly as PEFT does, and names it.
    """
    config = json.loads((weights / "config.json").read_bytes())
    kind = str(config.get("model_type"))
    architecture = architecture_of(kind)
    text = {**config, **(config.get("text_config") or {})}
    layers, heads = int(text["num_hidden_layers"]), Heads.of(text)
    lora = peft_folder.read(adapter, model_info.linear_shapes(weights), load, finite)
    tensors: dict[str, Array] = {}
    # One alpha for the file, and llama.cpp divides it by each tensor's own rank: what differs goes into B.
    first = next(iter(lora.pairs.values()))
    alpha = first.scale * first.a.shape[0]
    for module, pair in lora.pairs.items():
        tensor = tensor_of(module, kind, layers)
        a, b = ordered(tensor, module, pair.a, _scaled(pair, alpha), architecture, heads)
        tensors[f"{tensor.name}.weight.lora_a"], tensors[f"{tensor.name}.weight.lora_b"] = a, b
    _write(out, architecture, alpha, tensors)


def architecture_of(kind: str) -> gguf.MODEL_ARCH:
    """Raises AdapterError for a `model_type` that is not known here."""
    if kind not in ARCHITECTURES:
        raise AdapterError(
            f"A {kind} is a model whose adapters rlproxy cannot write as GGUF; it can for {len(ARCHITECTURES)} kinds "
            "(docs/reference/models.md)."
        )
    return ARCHITECTURES[kind]


def tensor_of(module: str, kind: str, layers: int) -> LayerTensor:
    """llama.cpp's tensor of a linear layer. Raises AdapterError where there is none that takes a LoRA."""
    architecture = architecture_of(kind)
    tensor = find_tensor(module, architecture, layers)
    if tensor is None:
        kinds = ", ".join(sorted(gguf.TENSOR_NAMES[kind].rpartition(".")[2] for kind in wearable(architecture)))
        raise AdapterError(f"{module} of a {kind} cannot have a LoRA in llama.cpp, which takes one on {kinds}.")
    return tensor


def _scaled(pair: LoraPair, alpha: float) -> Array:
    """B, where the file's alpha is divided by this pair's rank."""
    scale = alpha / pair.a.shape[0]
    b: Array = pair.b
    return b if scale == pair.scale else (b * np.float32(pair.scale / scale)).astype(np.float32)


def _write(out: Path, architecture: gguf.MODEL_ARCH, alpha: float, tensors: Mapping[str, Array]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        writer = gguf.GGUFWriter(temporary, gguf.MODEL_ARCH_NAMES[architecture])
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


# --- reading safetensors without torch ----------------------------------------------------------------------------


def load(path: str) -> dict[str, Any]:
    """Every tensor as float32; numpy itself has no bfloat16."""
    return {name: _array(name, tensor) for name, tensor in deserialize(Path(path).read_bytes())}  # type: ignore[no-untyped-call]


def finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _array(name: str, tensor: Mapping[str, Any]) -> Array:
    if tensor["dtype"] == "BF16":
        array = (np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif tensor["dtype"] in ("F16", "F32"):
        array = np.frombuffer(tensor["data"], {"F16": np.float16, "F32": np.float32}[tensor["dtype"]]).astype(
            np.float32
        )
    else:
        raise AdapterError(f"{name} is in {tensor['dtype']}; rlproxy's adapters are in BF16, F16 or F32.")
    return array.reshape(tensor["shape"])


def main() -> int:
    from trainer.formats.weights import WeightsError, resolve

    parser = argparse.ArgumentParser(
        prog="python -m trainer.formats.gguf", description="A PEFT adapter as a GGUF file."
    )
    parser.add_argument("adapter", type=Path, help="its folder: adapter_config.json, adapter_model.safetensors")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--weights", help="the model that it was trained on: a folder or a hub id")
    arguments = parser.parse_args()
    try:
        convert(arguments.adapter, resolve(arguments.weights).path, arguments.out)
    except (AdapterError, WeightsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
