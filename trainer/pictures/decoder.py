"""Starts the process that decodes one picture for the built-in server, and ends it.

Owns its bounds as seen from outside: time on the clock, and bytes in and out. Not here: what it does (pixels).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from config.sections import Images
from trainer.pictures import pixels
from trainer.pictures.pixels import NO_PILLOW, BadPicture

MB: Final = 2**20
AT_ONCE: Final = 2  # processes: each may take images.memory_mb
REMEMBERED: Final = 64 * MB  # of decoded pictures: a conversation sends the same one with each turn
CHANNELS: Final = 3
HEAD_BYTES: Final = 4096  # its line of JSON is shorter


class PictureDecoder:
    def __init__(self, bounds: Images) -> None:
        """Raises BadPicture where Pillow is not installed."""
        spec = importlib.util.find_spec("PIL")
        if spec is None or spec.origin is None:
            raise BadPicture(NO_PILLOW)
        self._folder = str(Path(spec.origin).parents[1])
        self.bounds = bounds
        self._places = asyncio.Semaphore(AT_ONCE)
        self._images: OrderedDict[str, Any] = OrderedDict()  # by sha256, the newest last

    async def decode(self, data: bytes) -> tuple[str, Any]:
        """The sha256 of these bytes, and Pillow's RGB image of them. Raises BadPicture."""
        name = hashlib.sha256(data).hexdigest()
        if name in self._images:
            self._images.move_to_end(name)
            return name, self._images[name]
        if len(data) > self.bounds.max_bytes:
            raise BadPicture(f"a picture has {len(data):,} bytes, more than images.max_bytes")
        async with self._places:
            image = await self._decode(data)
        self._images[name] = image
        while sum(map(_size, self._images.values())) > REMEMBERED and len(self._images) > 1:
            self._images.popitem(last=False)
        return name, image

    async def _decode(self, data: bytes) -> Any:
        process = await self._start()
        try:
            async with asyncio.timeout(self.bounds.timeout_s):
                answer = await _exchange(process, data, HEAD_BYTES + CHANNELS * self.bounds.max_pixels)
        except TimeoutError:
            raise BadPicture(
                f"decoding a picture takes more than {self.bounds.timeout_s:g} s (images.timeout_s)"
            ) from None
        finally:
            await _end(process)
        return await asyncio.to_thread(_image, answer)

    async def _start(self) -> asyncio.subprocess.Process:
        bounds = self.bounds
        arguments = [bounds.memory_mb * MB, math.ceil(bounds.timeout_s), bounds.max_pixels, self._folder]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(pixels.__file__),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )


async def _exchange(process: asyncio.subprocess.Process, data: bytes, most: int) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended before it had read all
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    answer = bytearray()
    while len(answer) <= most and (piece := await process.stdout.read(1 << 20)):
        answer += piece
    return bytes(answer)


def _image(answer: bytes) -> Any:
    """Raises BadPicture for what is not an answer of the process: it was ended."""
    from PIL import Image

    line, _, rgb = answer.partition(b"\n")
    try:
        content: dict[str, Any] = json.loads(line)
        if "reason" in content:
            raise BadPicture(str(content["reason"])[:300])
        return Image.frombytes("RGB", (int(content["width"]), int(content["height"])), rgb)
    except (ValueError, KeyError, TypeError):
        raise BadPicture("a picture cannot be decoded within images.memory_mb and images.timeout_s") from None


def _size(image: Any) -> int:
    return CHANNELS * int(image.width) * int(image.height)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, 9)
    assert process.stdout is not None
    while await process.stdout.read(1 << 20):  # a pipe that is not read to its end would keep `wait` waiting
        pass
    await process.wait()
