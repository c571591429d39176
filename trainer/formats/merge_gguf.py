"""A model's own GGUF file and a PEFT adapter as one GGUF file.

`python -m trainer.formats.merge_gguf ADAPTER BASE.gguf OUT.gguf` does it by hand.

For servers that take whole models only: Ollama from 0.34.1, LM Studio. Owns the sum, and in which type each changed
tensor is stored. What the adapter does not touch stays byte for byte: tokenizer, chat template, every other tensor. A
quantised weight lies on a grid, and a LoRA moves it by a hundredth of a step. To the nearest point, over nine tenths of
what was learned are rounded away. So it is added at random (grid), where that is little noise beside the quantisation's
own: then the file is as large as the base. Else a tensor becomes of a larger type, in which the change survives. Not
here: a LoRA as a file of its own (gguf), models from Hugging Face weights.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from trainer.formats import grid, peft_folder
from trainer.formats.architectures import (
    ARCHITECTURES,
    TEXT_PREFIXES,
    Array,
    Heads,
    LayerTensor,
    layer_tensors,
    ordered,
)
from trainer.formats.gguf import finite, load
from trainer.formats.manifest import AdapterError

Report = Callable[[str], None]

# What the gguf package can write as exactly as llama.cpp does. K-quants and IQ types it only reads.
WRITABLE: Final = (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q5_1, Type.Q5_0, Type.Q4_1, Type.Q4_0)
LARGER: Final = (Type.Q8_0, Type.F16, Type.F32)
# How much noise a change may add to a tensor that keeps its type: of the energy that quantisation itself has lost (4
# bits), or of the weights' (finer types). The latter is an eighth of what 4 bits lose. Measured: docs/lab/backends.md.
NOISE_OF_OWN: Final = 0.25
NOISE_OF_WEIGHTS: Final = 1e-3
LOST: Final = 0.1  # the share of a change that may go missing, or be made up, in a type
SAMPLE: Final = 256  # rows of a tensor on which a type is tried
SPARE: Final = 2**29  # bytes left free on the disk
PIECE: Final = 2**26
COUNTS: Final = 24  # bytes before the metadata: magic, version, two counts


@dataclass(frozen=True, slots=True)
class FusionSummary:
    changed_tensors: int  # tensors
    retyped: dict[str, int]  # of them, those stored in another type: "Q4_K to Q8_0", and how many
    bytes_before: int  # bytes of the file
    bytes_after: int

    def __str__(self) -> str:
        sizes = f"{self.bytes_before / 1e6:.0f} MB became {self.bytes_after / 1e6:.0f} MB"
        if not self.retyped:
            return f"{self.changed_tensors} tensors changed, each in its own type; {sizes}"
        retyped = ", ".join(f"{n} from {how}" for how, n in self.retyped.items())
        return f"{self.changed_tensors} tensors changed, {retyped}, so that the change is not rounded away; {sizes}"


@dataclass(slots=True)
class _Tensor:
    """A tensor of the base, and what becomes of it."""

    base: Any  # gguf.ReaderTensor
    type: Type
    delta: _Delta | None = None
    stays_on_grid: bool = False  # the change is added at random, with scales as they are

    @property
    def bytes(self) -> int:
        return round(int(self.base.n_elements) * _bits(self.type) / 8)


@dataclass(frozen=True, slots=True)
class _Delta:
    a: Array  # (r, in)
    b: Array  # (out, r), rows as llama.cpp has them
    scale: float

    def rows(self, selection: slice) -> Array:
        return (np.float32(self.scale) * (self.b[selection] @ self.a)).astype(np.float32)


def fuse(adapter: Path, base: Path, out: Path, report: Report = lambda line: None) -> FusionSummary:
    """Write `out`, whole or not at all. Raises AdapterError with one sentence."""
    reader = _read(base)
    architecture = _architecture(reader, base)
    report(f"reading {adapter}")
    deltas = _deltas(reader, base, adapter, architecture)
    tensors = [_Tensor(tensor, tensor.tensor_type, deltas.get(tensor.name)) for tensor in reader.tensors]
    changed = [tensor for tensor in tensors if tensor.delta is not None]
    for tensor in changed:
        tensor.stays_on_grid = _fits_grid(tensor)
        if not tensor.stays_on_grid:
            tensor.type = _type_for(tensor)
    size = len(_header(reader, tensors)) + sum(_aligned(tensor.bytes, reader.alignment) for tensor in tensors)
    _require_disk(out, size)
    _write(out, reader, tensors, len(changed), report)
    types = [(_stored_type(tensor), tensor.type) for tensor in changed]
    retyped = Counter(f"{old.name} to {new.name}" for old, new in types if new != old)
    return FusionSummary(len(changed), dict(retyped), base.stat().st_size, out.stat().st_size)


# --- the base and the change --------------------------------------------------------------------------------------


def _read(base: Path) -> Any:
    try:
        reader = gguf.GGUFReader(base)
    except FileNotFoundError:
        raise AdapterError(f"{base}, the model's own GGUF file, is not there.") from None
    except OSError as error:
        raise AdapterError(f"{base}, the model's own GGUF file, cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise AdapterError(f"{base} is not a whole GGUF file: {error}.") from None
    if reader.byte_order != "I":
        raise AdapterError(f"{base} is for machines of the other byte order.")
    if (field := reader.get_field("general.type")) is not None and field.contents() != "model":
        raise AdapterError(f"{base} is a GGUF file of type {field.contents()}, not a model.")
    if (field := reader.get_field("split.count")) is not None and int(field.contents()) > 1:
        raise AdapterError(f"{base} is one of {field.contents()} parts; join them first (llama-gguf-split --merge).")
    return reader


def _field(reader: Any, base: Path, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise AdapterError(f"{base} does not say its {name}.")
    return field.contents()


def _architecture(reader: Any, base: Path) -> gguf.MODEL_ARCH:
    kind = str(_field(reader, base, "general.architecture"))
    architectures = {gguf.MODEL_ARCH_NAMES[architecture]: architecture for architecture in ARCHITECTURES.values()}
    if kind not in architectures:
        raise AdapterError(
            f"{base} is a {kind}, to which rlproxy cannot add an adapter; "
            f"it can for {', '.join(sorted(architectures))}."
        )
    return architectures[kind]


def _deltas(reader: Any, base: Path, adapter: Path, architecture: gguf.MODEL_ARCH) -> dict[str, _Delta]:
    """By the base's tensor names. Raises AdapterError for an adapter of another model."""
    layers = int(_field(reader, base, f"{gguf.MODEL_ARCH_NAMES[architecture]}.block_count"))
    shapes = {t.name: (int(t.shape[1]), int(t.shape[0])) for t in reader.tensors if len(t.shape) == 2}
    tensors: dict[str, tuple[LayerTensor, int]] = {}
    for name, tensor in layer_tensors(architecture, layers, merged=True).items():
        if f"{tensor.name}.weight" in shapes:
            for prefix in TEXT_PREFIXES:
                tensors[f"{prefix}layers.{name}"] = tensor, int(name.partition(".")[0])
    layer_shapes = {module: shapes[f"{tensor.name}.weight"] for module, (tensor, _) in tensors.items()}
    lora = peft_folder.read(adapter, layer_shapes, load, finite)
    deltas: dict[str, _Delta] = {}
    for module, pair in lora.pairs.items():
        tensor, n = tensors[module]
        a, b = ordered(tensor, module, pair.a, pair.b, architecture, _heads(reader, base, architecture, n))
        deltas[f"{tensor.name}.weight"] = _Delta(a, b, pair.scale)
    return deltas


def _heads(reader: Any, base: Path, architecture: gguf.MODEL_ARCH, layer: int) -> Heads:
    """Some models have a number of heads for each layer."""
    kind = gguf.MODEL_ARCH_NAMES[architecture]

    def number(name: str, default: int | None = None) -> int:
        if default is not None and reader.get_field(f"{kind}.{name}") is None:
            return default
        value = _field(reader, base, f"{kind}.{name}")
        return int(value[layer] if isinstance(value, list) else value)

    queries, value_heads = number("attention.head_count"), number("ssm.time_step_rank", 0)
    return Heads(
        queries,
        number("attention.head_count_kv", queries),
        number("ssm.group_count", 0),
        value_heads,
        number("ssm.state_size", 0),
        number("ssm.inner_size", 0) // value_heads if value_heads else 0,
    )


# --- the type -----------------------------------------------------------------------------------------------------


def _stored_type(tensor: _Tensor) -> Type:
    return Type(tensor.base.tensor_type)


def _sample_rows(tensor: _Tensor) -> slice:
    return slice(None, None, max(1, int(tensor.base.shape[1]) // SAMPLE))


def _fits_grid(tensor: _Tensor) -> bool:
    """Tell whether the change can be added on the grid that the weights lie on."""
    stored_type, rows = _stored_type(tensor), _sample_rows(tensor)
    if stored_type not in grid.HIGHEST:
        return False
    assert tensor.delta is not None
    data = np.ascontiguousarray(tensor.base.data[rows])
    cost = grid.shift_cost(data, stored_type, tensor.delta.rows(rows))
    weights = _weights(tensor, rows).astype(np.float64)
    most = max(NOISE_OF_OWN * cost.own_noise, NOISE_OF_WEIGHTS * float((weights**2).sum()))
    return abs(1 - cost.share) <= LOST and cost.noise <= most


def _type_for(tensor: _Tensor) -> Type:
    """The base's own type where the change survives in it, else the smallest other one where it does."""
    stored_type = _stored_type(tensor)
    width = int(tensor.base.shape[0])
    sample_rows = _sample_rows(tensor)
    weights = _weights(tensor, sample_rows)
    assert tensor.delta is not None
    delta = tensor.delta.rows(sample_rows)
    candidates = [stored_type] if stored_type in WRITABLE else []
    candidates += [kind for kind in LARGER if _bits(kind) >= _bits(stored_type) and kind != stored_type]
    for candidate in candidates:
        if width % gguf.GGML_QUANT_SIZES[candidate][0]:
            continue
        if abs(1 - surviving_share(weights, delta, candidate)) <= LOST:
            return candidate
    return Type.F32


def _bits(kind: Type) -> float:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return float(8 * size / block)


def surviving_share(weights: Array, delta: Array, kind: Type) -> float:
    """How much of a change to weights is still there when their sum is stored: 1 is all of it, 0 nothing."""
    size = float((delta.astype(np.float64) ** 2).sum())
    if size == 0:
        return 1.0
    with np.errstate(over="ignore", invalid="ignore"):  # too large for 16 bits: then it is not that type
        stored = gguf.dequantize(gguf.quantize(weights + delta, kind), kind).astype(np.float64) - weights
        share = float((stored * delta).sum() / size)
    return share if np.isfinite(share) else 0.0


def _weights(tensor: _Tensor, rows: slice) -> Array:
    try:
        weights = gguf.dequantize(tensor.base.data[rows], tensor.base.tensor_type)
    except NotImplementedError:
        stored = _stored_type(tensor).name
        raise AdapterError(f"{tensor.base.name} is stored as {stored}, which cannot be read.") from None
    return np.asarray(weights, np.float32)


# --- the file -----------------------------------------------------------------------------------------------------


def _header(reader: Any, tensors: list[_Tensor]) -> bytes:
    """Everything before the numbers: the base's own metadata, and where each tensor now lies."""
    metadata_end = int(reader.tensors[0].field.offset) if tensors else int(reader.data_offset)
    parts, offset = [reader.data[:metadata_end].tobytes()], 0
    for tensor in tensors:
        name_length, name, dimensions, sizes, _, _ = tensor.base.field.parts
        parts += [part.tobytes() for part in (name_length, name, dimensions, sizes)]
        parts.append(struct.pack("<IQ", int(tensor.type), offset))
        offset += _aligned(tensor.bytes, reader.alignment)
    header = b"".join(parts)
    return header.ljust(_aligned(len(header), reader.alignment), b"\0")


def _aligned(size: int, alignment: Any) -> int:
    return -(-size // int(alignment)) * int(alignment)


def _require_disk(out: Path, size: int) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    if free < size + SPARE:
        raise AdapterError(
            f"The fused model takes {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free in {out.parent}; "
            "free some space and promote the version again."
        )


def _write(out: Path, reader: Any, tensors: list[_Tensor], changes: int, report: Report) -> None:
    temporary, count = out.with_name(f".{out.name}.tmp"), 0
    try:
        with temporary.open("wb") as file:
            file.write(_header(reader, tensors))
            for tensor in tensors:
                for piece in _pieces(tensor):
                    file.write(piece)
                file.write(b"\0" * (_aligned(tensor.bytes, reader.alignment) - tensor.bytes))
                if tensor.delta is not None:
                    count += 1
                    report(f"{count} of {changes} tensors, {tensor.base.name} as {tensor.type.name}")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise AdapterError(f"{out} could not be written: {error.strerror or error}; nothing is left of it.") from None
    finally:
        temporary.unlink(missing_ok=True)


def _pieces(tensor: _Tensor) -> Iterator[bytes]:
    """In pieces of whole rows, so that a large tensor is never in memory as floats at once."""
    data = tensor.base.data
    if tensor.delta is None:
        flat = data.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, PIECE):
            yield flat[start : start + PIECE].tobytes()
        return
    rows = max(1, PIECE // (4 * int(tensor.base.shape[0])))
    numbers = np.random.default_rng(zlib.crc32(str(tensor.base.name).encode()))  # the same file each time
    for start in range(0, data.shape[0], rows):
        selection = slice(start, start + rows)
        if tensor.stays_on_grid:
            quantised = np.ascontiguousarray(data[selection])
            yield grid.shifted(quantised, tensor.type, tensor.delta.rows(selection), numbers).tobytes()
            continue
        yield gguf.quantize(_weights(tensor, selection) + tensor.delta.rows(selection), tensor.type).tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.formats.merge_gguf", description="A model and an adapter as one GGUF."
    )
    parser.add_argument("adapter", type=Path, help="its folder: adapter_config.json, adapter_model.safetensors")
    parser.add_argument("base", type=Path, help="the model's own GGUF file")
    parser.add_argument("out", type=Path, help="the file to write")
    arguments = parser.parse_args()
    try:
        print(f"{arguments.out}: {fuse(arguments.adapter, arguments.base, arguments.out, report=print)}")
    except AdapterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
