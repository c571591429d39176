"""GGUF files that are made of an adapter for servers of llama.cpp's kind, and room for them.

Owns their names and that each is made once. How they are made belongs to trainer.formats.gguf and
trainer.formats.merge_gguf.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Final

from proxy.backends.gguf_head import NoGguf, Tensor, read_tensors
from proxy.backends.model_files import open_regular
from proxy.core.errors import BackendBroke
from trainer.launch import Launcher, LaunchError

GB: Final = 1e9
MB: Final = 1e6
GROWTH: Final = 2  # a fused model over its base, where its tensors cannot be read
SPARE: Final = 2**29  # bytes that fusing leaves free
Q8_0, Q8_0_BITS, F16_BITS = 8, 8.5, 16.0
LARGE: Final = (0, 1, 30)  # F32, F16, BF16: a change survives in them
# Types that a tensor keeps when it is changed, or that become one as large: those of LARGE, Q4_0, Q4_1, Q5_0, Q5_1,
# Q8_0, Q4_K, Q5_K, Q6_K.
SIZE_KEEPING: Final = frozenset((*LARGE, 2, 3, 6, 7, Q8_0, 12, 13, 14))
_CHANGED: Final = re.compile(r"blk\.\d+\.(attn|ffn)_(q|k|v|qkv|output|gate|up|down)\.weight")


async def adapter_file(launcher: Launcher, path: Path, weights: str | None, folder: Path) -> Path:
    """The adapter as a GGUF file in `folder`, made once. Raises BackendBroke."""
    out = folder / f"{path.name}-{await digest_of(path)}.gguf"
    if not await asyncio.to_thread(out.exists):
        try:
            await launcher.gguf(path, weights, out)
        except LaunchError as error:
            raise BackendBroke(str(error)) from error
    return out


async def digest_of(adapter: Path) -> str:
    """So that a folder that was made anew under an old name is converted anew."""
    return (await sha256(adapter / "adapter_model.safetensors"))[:12]


async def sha256(path: Path) -> str:
    return await asyncio.to_thread(_sha256, path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unreadable_reason(base: Path) -> str | None:
    """Why the model's own file cannot be read here, as the end of a sentence; None where it can."""
    try:
        with open_regular(base) as file:
            return None if file.read(4) == b"GGUF" else f"{base} is no GGUF file"
    except OSError as error:
        return f"{base} cannot be read ({error.strerror or error})"


def whole_size(base: Path) -> int:
    """Bytes that a version of this model takes at most, as trainer.formats.merge_gguf stores it. Raises OSError.

    What an adapter may change is stored as Q8_0 where it has fewer bits, and as F16 where it is Q8_0. Of a file whose
    head cannot be read: GROWTH times its size.
    """
    stat = base.stat()
    layers = _layers(base, stat.st_size, stat.st_mtime_ns)
    return stat.st_size * GROWTH if layers is None else stat.st_size + sum(map(_tensor_growth, layers))


@lru_cache(maxsize=8)  # the head of a large model is megabytes, and `status` asks each time
def _layers(base: Path, size: int, changed_ns: int) -> tuple[Tensor, ...] | None:
    """The tensors that an adapter may change; None where the head cannot be read."""
    try:
        return tuple(tensor for tensor in read_tensors(base) if _CHANGED.fullmatch(tensor.name))
    except NoGguf:
        return None


def _tensor_growth(tensor: Tensor) -> int:
    then = F16_BITS if tensor.kind == Q8_0 else tensor.bits if tensor.kind in LARGE else Q8_0_BITS
    return max(0, int(tensor.elements * (then - tensor.bits) / 8))


def growth_line(base: Path) -> str | None:
    """One sentence on the size of a version beside this model's own file; None where its head cannot be read.

    Most tensors keep their type with what was learned in it (trainer.formats.merge_gguf). Of others the reason is said.
    """
    try:
        stat = base.stat()
    except OSError:
        return None
    size, tensors = stat.st_size, _layers(base, stat.st_size, stat.st_mtime_ns)
    if tensors is None:
        return None
    if not (growing := [tensor for tensor in tensors if tensor.kind not in SIZE_KEEPING]):
        most = whole_size(base)
        largest = f" (at most {most / MB:,.0f} MB, once it has learned much)" if most > size else ""
        return f"a version is a model of {size / MB:,.0f} MB, as large as the one that it is made of{largest}"
    most, bits = size + sum(map(_tensor_growth, growing)), sorted({round(tensor.bits, 1) for tensor in growing})
    return (
        f"a version is a model of up to {most / MB:,.0f} MB beside {size / MB:,.0f} MB: {len(growing)} of its "
        f"{len(tensors)} layers have {' and '.join(map(str, bits))} bits a weight in a type that rlproxy only reads, "
        "so what is learned is stored in 8"
    )


def room_problem(base: Path, fused: Path, served: tuple[Path, int] | None = None) -> str | None:
    """One sentence where a whole model has no place in a folder, or in its first parent that is there.

    `fused`: where it is written. `served` is the server's own folder, and how many copies of it are there at once while
    the server makes one. The first is gone by then, so of folders on one disk the larger need counts.
    """
    try:
        size = whole_size(base)
    except OSError as error:
        return f"The model's own file {base} cannot be read any more: {error.strerror or error}."
    needs = [(_existing_parent(fused), size + SPARE)]
    if served is not None:
        needs.append((_existing_parent(served[0]), size * served[1]))
    for folder, needed in needs:
        if (free := shutil.disk_usage(folder).free) < needed:
            return (
                f"A version is a whole model of up to {size / GB:.1f} GB here. To make one takes "
                f"{needed / GB:.1f} GB in {folder}, and {free / GB:.1f} GB are free; free some space."
            )
    return None


def _existing_parent(folder: Path) -> Path:
    while not os.path.exists(folder):
        folder = folder.parent
    return folder
