"""Starts the process that decodes one picture, and ends it.

Owns its bounds as seen from outside: time on the clock, and bytes of its answer. Each picture has a process of its own,
so one that is hostile spoils nothing for the next. Not here: how it decodes (program), which pictures (examiner).
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
from pathlib import Path
from typing import Any, Final

from config.sections import Images
from proxy.core.offload import off_loop
from store.image_records import DecodedImage

PROGRAM: Final = Path(__file__).with_name("program.py")
MOST_BYTES: Final = 2**20  # of its answer: a thumbnail has a tenth of that
MB: Final = 2**20
NO_PILLOW: Final = "pictures are not decoded: `pip install 'rlproxy[images]'`, and start rlproxy again"


class Decoder:
    def __init__(self, settings: Images) -> None:
        self._settings = settings
        self._folder = _pillow()

    @property
    def is_installed(self) -> bool:
        return self._folder is not None

    async def decode(self, data: bytes) -> DecodedImage:
        """Decode this picture. It never raises for what the bytes are: then the image has a reason."""
        assert self._folder is not None
        sha256 = (await off_loop(len(data), hashlib.sha256, data)).digest()
        if len(data) > self._settings.max_bytes:
            return DecodedImage(sha256, len(data), reason=f"it has {len(data)} bytes, more than images.max_bytes")
        process = await self._start(self._folder)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                answer = await _exchange(process, data)
                if len(answer) > MOST_BYTES:
                    await _end(process)
                status = await process.wait()
        except TimeoutError:
            reason = f"decoding it takes more than {self._settings.timeout_s:g} s (images.timeout_s)"
            return DecodedImage(sha256, len(data), reason=reason)
        finally:
            await _end(process)
        try:
            return _read(answer, sha256, len(data))
        except (ValueError, KeyError, TypeError):
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            return DecodedImage(sha256, len(data), reason=f"the process that decodes it ended {how}")

    async def _start(self, folder: str) -> asyncio.subprocess.Process:
        bounds = self._settings
        arguments = [bounds.memory_mb * MB, math.ceil(bounds.timeout_s), bounds.max_pixels, folder]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(PROGRAM),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )


def _pillow() -> str | None:
    """The folder that has Pillow; None where it is not installed."""
    spec = importlib.util.find_spec("PIL")
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parents[1])


async def _exchange(process: asyncio.subprocess.Process, data: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended before it had read all
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    answer = bytearray()
    while len(answer) <= MOST_BYTES and (piece := await process.stdout.read(1 << 16)):
        answer += piece
    return bytes(answer)


def _read(answer: bytes, sha256: bytes, size: int) -> DecodedImage:
    """Raises ValueError, KeyError, TypeError for what is not an answer of the program."""
    line, end, thumbnail = answer.partition(b"\n")
    content: dict[str, Any] = json.loads(line)
    if not end or len(answer) > MOST_BYTES or not isinstance(content, dict):
        raise ValueError("not an answer")
    if "reason" in content:
        return DecodedImage(sha256, size, reason=str(content["reason"])[:300])
    if not thumbnail:
        raise ValueError("no thumbnail")
    width, height = int(content["width"]), int(content["height"])
    return DecodedImage(sha256, size, str(content["format"]), width, height, thumbnail)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        assert process.stdout is not None
        while await process.stdout.read(1 << 16):  # a pipe that is not read to its end would keep `wait` waiting
            pass
        await process.wait()
