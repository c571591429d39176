"""GGUF files that are made of an adapter for servers of llama.cpp's kind, and room for them.

Owns their names and that each is made once. How they are made belongs to trainer.gguf and trainer.fuse.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from proxy.errors import BackendBroke
from trainer.launch import Launcher, LaunchError

GB: Final = 1e9
GROWTH: Final = 2  # a fused model over its base: 4 bits become Q8_0, Q8_0 becomes F16; fusing itself counts exactly


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


def unreadable(base: Path) -> str | None:
    """Why the model's own file cannot be read here, as the end of a sentence; None where it can."""
    try:
        with base.open("rb") as file:
            return None if file.read(4) == b"GGUF" else f"{base} is no GGUF file"
    except OSError as error:
        return f"{base} cannot be read ({error.strerror or error})"


def no_room(base: Path, *folders: Path) -> str | None:
    """One sentence where a model of about this size has no place in one of the folders, or in their first parents
    that are there."""
    try:
        needed = base.stat().st_size * GROWTH
    except OSError as error:
        return f"The model's own file {base} cannot be read any more: {error.strerror or error}."
    for folder in folders:
        while not os.path.exists(folder):
            folder = folder.parent
        if (free := shutil.disk_usage(folder).free) < needed:
            return (
                f"A version is a whole model of up to {needed / GB:.1f} GB here, and {free / GB:.1f} GB are free "
                f"in {folder}; free some space."
            )
    return None
