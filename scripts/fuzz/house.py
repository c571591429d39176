"""A running rlproxy to be fuzzed, with a sound backend beside it, and what it leaves: its log, its end, its home.

Owns the process. What is asked of it is `routes` and `schema`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from scripts.fakes.sound import SoundBackend
from scripts.fuzz.server import KEYS

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 60.0
BUGS = ("a bug of rlproxy's own", "Traceback", "never retrieved", "Unclosed", "never awaited", "Error handling request")


@dataclass
class House:
    home: Path
    log: Path
    process: asyncio.subprocess.Process
    url: str
    key: str | None  # an admin's, where keys are on
    failures: list[str] = field(default_factory=list)

    @property
    def memory_mb(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20

    @property
    def connections(self) -> int:
        return len(psutil.Process(self.process.pid).net_connections("tcp"))

    async def stop(self) -> None:
        """Stop the proxy as Ctrl-C does; what it says and how it ends are part of the verdict."""
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                ended = await self.process.wait()
        except TimeoutError:
            self.failures.append(f"it did not stop within {STOP_S:g} s of SIGTERM")
            return
        if ended != 0:
            self.failures.append(f"it ended with {ended}")
        counts = bugs(self.log.read_text(errors="replace"))
        self.failures += [f"in the log, {times} times: {bug}" for bug, times in counts.items()]


@contextlib.asynccontextmanager
async def house(*, keys: bool) -> AsyncIterator[House]:
    """With keys its backend has every format, without them chat completions alone."""
    with tempfile.TemporaryDirectory(prefix="rlproxy-fuzz-") as folder:
        home, log = Path(folder) / "home", Path(folder) / "log"
        backend = SoundBackend(native=keys)
        await backend.start()
        command = [sys.executable, "-m", "scripts.fuzz.server", str(home), backend.url, *(["--keys"] if keys else [])]
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        try:
            assert process.stdout is not None
            ready = await process.stdout.readline()
            if not ready:
                raise SystemExit(f"the proxy did not start:\n{log.read_text()[-3000:]}")
            yield House(home, log, process, json.loads(ready)["url"], KEYS["server.admin_key"] if keys else None)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await backend.stop()


def bugs(log: str) -> Counter[str]:
    """Find the bugs in a log, each with its last frame in rlproxy's code; the same ones together."""
    counts: Counter[str] = Counter()
    for block in re.split(r"\n(?=\{|Error handling|Unhandled|Task )", log):
        block = block.replace("\\n", "\n")
        if any(bug in block for bug in BUGS):
            frames = re.findall(r'/((?:proxy|store|config)/[\w/]+\.py)\\*", line (\d+)', block)
            lines = [line for line in block.splitlines() if line.strip() and not line.startswith(" ")]
            counts[f"{lines[0][:200]} … {lines[-1][:400]} {frames[-1:]}"] += 1
    return counts
