"""A PEFT adapter folder as one GGUF file, for llama.cpp and what is built on it: `python -m trainer.formats.gguf`.

Owns the names, the order of rows and the scale that llama.cpp expects of a LoRA. Needs numpy, safetensors and the gguf
package (the `gguf` extra), no torch. Not here: reading a PEFT folder (peft_folder), whole models with the LoRA added
to their weights (merge_gguf).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import deserialize

from trainer.formats import model_info, peft_folder
from trainer.formats.manifest import AdapterError
from trainer.formats.peft_folder import LoraPair

Array = NDArray[np.float32]

# config.json's model_type, and the architecture that llama.cpp runs it as.
ARCHITECTURES: Final[Mapping[str, gguf.MODEL_ARCH]] = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
# The linear layers that take a LoRA there. The package's table of names also knows layers that others have.
LAYERS: Final = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj".split()  # noqa: SIM905
FUSED: Final = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj"]
_MODULE: Final = re.compile(r"model\.(?:language_model\.)?layers\.(?P<n>\d+)\.(?P<layer>.+)")


def convert(adapter: Path, weights: Path, out: Path) -> None:
    """Write the LoRA in `adapter`, trained on the model in `weights`, to the file `out`: whole, or not at all.

    Raises AdapterError for what llama.cpp would not wear exactly as PEFT does, and names it.
    """
    config = json.loads((weights / "config.json").read_bytes())
    kind = str(config.get("model_type"))
    if kind not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise AdapterError(
            f"{weights} is a {kind}, whose adapters rlproxy cannot write as GGUF; it can for {supported}."
        )
    text = {**config, **(config.get("text_config") or {})}
    lora = peft_folder.read(adapter, _linear_layers(weights), load, finite)
    tensors: dict[str, Array] = {}
    # One alpha for the file, and llama.cpp divides it by each tensor's own rank: what differs goes into B.
    first = next(iter(lora.pairs.values()))
    alpha = first.scale * first.a.shape[0]
    for module, pair in lora.pairs.items():
        name = tensor_name(module, kind, int(text["num_hidden_layers"]))
        tensors[f"{name}.weight.lora_a"] = pair.a
        tensors[f"{name}.weight.lora_b"] = _rows(module, pair, alpha, kind, text)
    _write(out, ARCHITECTURES[kind], alpha, tensors)


def layers_with_lora(kind: str) -> set[str]:
    """The linear layers of one block that may have a LoRA, by their names in a Hugging Face model."""
    return {*(FUSED if kind == "phi3" else LAYERS), "mlp.down_proj"}


def tensor_name(module: str, kind: str, layers: int) -> str:
    """llama.cpp's name of a linear layer. Raises AdapterError where there is none that takes a LoRA."""
    match = _MODULE.fullmatch(module)
    layer_names = layers_with_lora(kind)
    if match is None or match["layer"] not in layer_names:
        raise AdapterError(
            f"{module} cannot have a LoRA in llama.cpp; train without it (a {kind} has {_short_names(layer_names)})."
        )
    name = gguf.get_tensor_name_map(ARCHITECTURES[kind], layers).get_name(f"model.layers.{match['n']}.{match['layer']}")
    if name is None:
        raise AdapterError(f"{module} has no name in llama.cpp's {kind} of {layers} layers.")
    return str(name)


def _short_names(layers: set[str]) -> str:
    return ", ".join(sorted(layer.rpartition(".")[2] for layer in layers))


def _rows(module: str, pair: LoraPair, alpha: float, kind: str, config: Mapping[str, Any]) -> Array:
    """B, in the order in which llama.cpp has the rows of this layer."""
    b: Array = pair.b
    scale = alpha / pair.a.shape[0]
    if scale != pair.scale:
        b = (b * np.float32(pair.scale / scale)).astype(np.float32)
    heads = int(config["num_attention_heads"])
    return in_order(module, b, kind, heads, int(config.get("num_key_value_heads") or heads))


def in_order(module: str, rows: Array, kind: str, heads: int, groups: int) -> Array:
    """The rows of a layer as llama.cpp has them; `groups`: heads of keys and values."""
    if ARCHITECTURES[kind] is gguf.MODEL_ARCH.LLAMA and module.endswith(("q_proj", "k_proj")):
        return permuted(rows, groups if module.endswith("k_proj") else heads)
    return rows


def permuted(rows: Array, heads: int) -> Array:
    """Rotary halves [x₀…, y₀…] of each head as pairs [x₀, y₀, x₁, y₁…], as llama.cpp has them for a llama."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


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


def _linear_layers(weights: Path) -> dict[str, tuple[int, int]]:
    """(out, in) of each matrix in the model's own files, by the name of its layer."""
    shapes: dict[str, tuple[int, int]] = {}
    for path in model_info.weight_files(weights):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, tensor in header.items():
            if name.endswith(".weight") and len(tensor["shape"]) == 2:
                shapes[_module(name)] = (tensor["shape"][0], tensor["shape"][1])
    return shapes


def _module(tensor: str) -> str:
    """Models that also see keep the names of older days in their files; modules, and so adapters, have others."""
    module = tensor.removesuffix(".weight")
    text_module = module.removeprefix("language_model.model.")
    return module if text_module == module else f"model.language_model.{text_module}"


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
